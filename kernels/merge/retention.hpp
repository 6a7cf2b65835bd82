#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// The tokens of each row that MiniCache keeps unmerged in both layers of a pair: tokens whose
/// distance is within the fraction gamma of the distances' range from its far end,
///
///   distance[r, e] > max_r - gamma (max_r - min_r)
///
/// or, if `near_end`, eq. (4) as printed: distance[r, e] < min_r + gamma (max_r - min_r). A row
/// keeps at most the first `room` of them. Source: MiniCache (Liu et al. 2024), eq. (4) and the
/// text around it.
struct RetainRows {
  Span<const float> distance;  // [rows, stride], as written by slerp_rows; no NaN
  float gamma = 0;
  bool near_end = false;
  std::int64_t room = 1;
  Span<std::int32_t> kept;         // [rows, room], entries in ascending order, as gather_entries
                                   // expects
  Span<std::int32_t> retained_at;  // [rows, stride]: r room + rank of retained entries, else -1
  Span<std::int32_t> counts;       // [rows], number of retained entries
};
/// Errors: ContractError if a size is < 1, shape.stride is below shape.entries, gamma is outside
/// [0, 1], or a span is shorter than its shape. shape.keep is ignored.
void retain_rows(Stream stream, const kernels::SelectShape& shape, const RetainRows& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
