#include "traces/requests/reuse/cache_tiers.hpp"

#include <algorithm>

#include "models/units/check.hpp"

namespace kvsim {

std::vector<TierHits> tier_hits(const ReuseCurve& curve, Bytes block_bytes,
                                std::span<const CacheTier> tiers) {
  KVSIM_CHECK(block_bytes > Bytes{}, "a block has {} B", block_bytes.count());
  std::vector<TierHits> out;
  std::int64_t blocks = 0;
  std::int64_t above = 0;
  for (const CacheTier& tier : tiers) {
    const Bytes held = tier.held_block.value_or(block_bytes);
    KVSIM_CHECK(held > Bytes{}, "a block has {} B in {}", held.count(), tier.name);
    blocks += tier.capacity.count() / held.count();
    const std::int64_t found = curve.hits_of(blocks);
    TierHits one{.blocks = blocks, .hits = found - above};
    if (tier.bandwidth) {
      const Seconds copy = tier.link_block.value_or(block_bytes) * one.hits / *tier.bandwidth;
      one.load = std::max(copy, tier.decode * static_cast<double>(one.hits));
    }
    out.push_back(one);
    above = found;
  }
  return out;
}

}  // namespace kvsim
