#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvsim {

/// Number of prompt tokens that each layer computes and caches if layers pass on decreasing
/// numbers.
struct NestedSchedule {
  std::string shape = "cosine";   // cosine, linear, constant
  double delta = 0.9;             // share of its context that the last layer passes on
  std::int64_t recent = 0;        // last tokens, always kept
  std::int64_t min_context = 64;  // a context is always cut to more than this
  std::int32_t interval = 1;      // layers between two cuts
};

/// Returns [n_layers], non-increasing; the first element is `prompt`.
///
///   context_0 = prompt - recent;  context_{i+1} = int(context_i r_i), while that is > min_context
///   r_i = (1 - delta) (cos(pi i / L) + 1) / 2 + delta
///
/// Source: Yang et al., PyramidInfer, released code.
[[nodiscard]] std::vector<std::int64_t> nested_lengths(const NestedSchedule& schedule,
                                                       std::int64_t prompt, std::int32_t n_layers);

/// Returns a cosine schedule that falls from 1 at the first layer towards `end` at the last.
[[nodiscard]] double cosine_share(std::int32_t layer, std::int32_t n_layers, double end);

}  // namespace kvsim
