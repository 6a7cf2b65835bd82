#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "traces/requests/request.hpp"

namespace kvsim {

/// Order in which a request's blocks become most recent.
enum class TouchOrder : std::uint8_t {
  kTailFirst,  // last to first: tails are evicted before prefixes, as vLLM and radix trees do
  kHeadFirst,  // first to last, a plain LRU list: prefixes are evicted first
};

/// Hits of an LRU prefix cache for every capacity, under the instant model: at its start a request
/// finds the leading run of its blocks that are cached, then all its blocks become most recent. No
/// block is pinned, and answers are not cached.
struct ReuseCurve {
  std::int64_t blocks = 0;    // of all requests
  std::int64_t distinct = 0;  // distinct blocks
  std::int64_t hits = 0;      // with an unbounded cache
  /// Prompts that an unbounded cache contains in full and that end at a block boundary. An engine
  /// recomputes the last block of such a prompt, because it needs the logits of a token.
  std::int64_t whole_prompts = 0;
  /// Hits by required capacity: hits_at[i] more blocks from capacity capacities[i]. Ascending.
  std::vector<std::int64_t> capacities{}, hits_at{};

  /// Returns the hits of a cache of `capacity` blocks, at least 0.
  [[nodiscard]] std::int64_t hits_of(std::int64_t capacity) const;
};

/// `order`: indices of the trace's requests in the order of their starts. One pass, exact for every
/// capacity. LRU keeps the most recent blocks, so a block is cached if fewer distinct blocks than
/// the capacity have been used since its last use (Mattson et al. 1970); the largest such distance
/// in a leading run limits the run. Time O(blocks log distinct).
[[nodiscard]] ReuseCurve reuse_curve(const RequestTrace& trace, std::span<const std::int32_t> order,
                                     TouchOrder touch);

}  // namespace kvsim
