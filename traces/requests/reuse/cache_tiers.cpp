#include "traces/requests/reuse/cache_tiers.hpp"

#include "models/units/check.hpp"

namespace kvsim {

std::vector<TierHits> tier_hits(const ReuseCurve& curve, Bytes block_bytes,
                                std::span<const CacheTier> tiers) {
  KVSIM_CHECK(block_bytes > Bytes{}, "a block has {} B", block_bytes.count());
  std::vector<TierHits> out;
  std::int64_t blocks = 0;
  std::int64_t above = 0;
  for (const CacheTier& tier : tiers) {
    blocks += tier.capacity.count() / block_bytes.count();
    const std::int64_t found = curve.hits_of(blocks);
    TierHits one{.blocks = blocks, .hits = found - above};
    if (tier.bandwidth) one.load = block_bytes * one.hits / *tier.bandwidth;
    out.push_back(one);
    above = found;
  }
  return out;
}

}  // namespace kvsim
