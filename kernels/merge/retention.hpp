#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// The tokens of each row that MiniCache keeps whole in both layers of a pair: those whose distance
/// is within gamma of the distances' range from its far end,
///
///   distance[r, e] > max_r - gamma (max_r - min_r)
///
/// or, where `near_end`, eq. (4) as it is printed: distance[r, e] < min_r + gamma (max_r - min_r).
/// A row keeps `room` at most: of more the first.
/// Source: MiniCache (Liu et al. 2024), eq. (4) and the text around it.
struct RetainRows {
  Span<const float> distance;  // [rows, stride], as slerp_rows leaves them; no NaN
  float gamma = 0;
  bool near_end = false;
  std::int64_t room = 1;
  Span<std::int32_t> kept;         // [rows, room], entries ascending: what gather_entries copies
  Span<std::int32_t> retained_at;  // [rows, stride]: r room + rank of those that stay, else -1
  Span<std::int32_t> counts;       // [rows], how many stay
};
/// Errors: ContractError if a size is < 1, shape.stride is below shape.entries, gamma is outside
/// [0, 1], or a span is shorter than its shape. shape.keep does not matter.
void retain_rows(Stream stream, const kernels::SelectShape& shape, const RetainRows& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
