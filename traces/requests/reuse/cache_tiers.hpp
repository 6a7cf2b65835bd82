#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/units/units.hpp"
#include "traces/requests/reuse/block_reuse.hpp"

namespace kvsim {

/// A level of a prefix cache. A block that one level evicts moves down to the next.
struct CacheTier {
  std::string name;
  Bytes capacity{};
  std::optional<BytesPerSecond> bandwidth{};  // at which blocks return to the GPU; absent:
                                              // instantly
  /// A block in another format than on the GPU: bytes reserved in the tier, bytes on the link, and
  /// minimum time to decode it, which overlaps with the copy.
  std::optional<Bytes> held_block{}, link_block{};
  Seconds decode{};
};

/// Contribution of one level under LRU.
struct TierHits {
  std::int64_t blocks = 0;  // total of this level and those above it
  std::int64_t hits = 0;    // found in this level and in no level above it
  Seconds load{};           // time for all of these hits to return
};

/// LRU caches are nested: levels that each hold what the one above evicted together behave like one
/// LRU cache of their total size. This is exact for every level from one curve. With
/// TouchOrder::kTailFirst a prefix is never in a lower level than its continuation. Each level has
/// a whole number of blocks of `block_bytes` > 0, and so do the sums. `tiers`: fastest first.
[[nodiscard]] std::vector<TierHits> tier_hits(const ReuseCurve& curve, Bytes block_bytes,
                                              std::span<const CacheTier> tiers);

}  // namespace kvsim
