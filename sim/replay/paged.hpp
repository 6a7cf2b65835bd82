#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/memory/block_allocator.hpp"
#include "sim/replay/head_replay.hpp"
#include "sim/replay/replay.hpp"

namespace kvsim {

/// Returns the slots of a head's entries in the order in which they were written. Each entry is at
/// its first member. If several entries share that member, the later ones are at their next own
/// member. Ascending, below `written`.
[[nodiscard]] std::vector<std::int32_t> slots_of(std::span<const std::vector<std::int32_t>> kept,
                                                 std::int64_t written);

/// Collects the layers of one method as a paged cache stores them after prefill and at the end.
class PagedSummary {
 public:
  PagedSummary(std::int64_t prompt, std::int64_t tokens) : prompt_{prompt}, tokens_{tokens} {}

  void add_layer(const std::vector<HeadSeries>& heads);
  /// Returns one report per moment, block size and layout, in this order.
  [[nodiscard]] std::vector<ReplayPaged> reports(std::span<const std::int64_t> block_sizes) const;

 private:
  std::int64_t prompt_, tokens_;
  std::vector<PagedLayer> after_prefill_, at_end_;
};

}  // namespace kvsim
