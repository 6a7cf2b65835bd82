#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "traces/requests/request.hpp"

namespace kvsim {

/// Order in which a request's blocks become the most recent ones.
enum class TouchOrder : std::uint8_t {
  kTailFirst,  // last to first: tails are evicted before prefixes, as vLLM and radix trees do
  kHeadFirst,  // first to last, a plain LRU list: prefixes are evicted first
};

/// Hits of an LRU prefix cache of every capacity, under the instant model: at its start a request
/// finds the leading run of its blocks that are cached, then all its blocks become the most recent
/// ones. Nothing is pinned and answers are not cached.
struct ReuseCurve {
  std::int64_t blocks = 0;    // of all requests
  std::int64_t distinct = 0;  // different ones
  std::int64_t hits = 0;      // of an unbounded cache
  /// Prompts that an unbounded cache holds whole and that end with a block. An engine computes the
  /// last block of such a prompt again, as it needs the logits of a token.
  std::int64_t whole_prompts = 0;
  /// Hits that need a capacity: hits_at[i] blocks more from capacities[i] blocks on. Ascending.
  std::vector<std::int64_t> capacities{}, hits_at{};

  /// Hits of a cache of `capacity` blocks, at least 0.
  [[nodiscard]] std::int64_t hits_of(std::int64_t capacity) const;
};

/// `order`: indices of the trace's requests as they start. One pass, exact for every capacity: LRU
/// keeps the most recent blocks, so that a block is cached if fewer different blocks than the
/// capacity have been used since its last use (Mattson et al. 1970); a leading run is as long as
/// its largest such distance allows. Time O(blocks log distinct).
[[nodiscard]] ReuseCurve reuse_curve(const RequestTrace& trace, std::span<const std::int32_t> order,
                                     TouchOrder touch);

}  // namespace kvsim
