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
  std::optional<BytesPerSecond> bandwidth{};  // at which blocks return to the GPU; none: at once
  /// A block in another format than the GPU's: what the level reserves for it, what the link
  /// carries, and the least time of decoding it, next to the copy.
  std::optional<Bytes> held_block{}, link_block{};
  Seconds decode{};
};

/// What one level adds under LRU.
struct TierHits {
  std::int64_t blocks = 0;  // of this level and those above it together
  std::int64_t hits = 0;    // found in this level and in none above it
  Seconds load{};           // the time that all of these hits take to return
};

/// LRU caches are nested, so that levels that each hold what the one above evicted hold together
/// what one LRU cache of their sizes' sum does: exact for every level from one curve. Each level
/// (TouchOrder::kTailFirst: a prefix is then never in a lower level than what follows it.) Each
/// level ends at a whole block of `block_bytes` > 0, the sums likewise. `tiers`: fastest first.
[[nodiscard]] std::vector<TierHits> tier_hits(const ReuseCurve& curve, Bytes block_bytes,
                                              std::span<const CacheTier> tiers);

}  // namespace kvsim
