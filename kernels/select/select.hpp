#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Selection by scores [rows, stride], of which the first `entries` of each row are used. Scores are
// not NaN; -0 and 0 are equal. Fewer than 2^31 entries per row. Errors: ContractError if
// shape.stride is not a multiple of 4 or below shape.entries, or a span is shorter than its shape.

/// position[r] = the entry with the lowest score, the first of equal ones.
void argmin_rows(Stream stream, const kernels::SelectShape& shape, Span<const float> scores,
                 Span<std::int64_t> position);

/// kept[r, :] = the entries with the `keep` highest scores, in ascending order; among equal scores
/// the first are kept. kept is [rows, min(keep, entries)].
void top_rows(Stream stream, const kernels::SelectShape& shape, Span<const float> scores,
              Span<std::int32_t> kept);

/// kept[r, :] = the counts[r] entries whose score is at least `threshold`, in ascending order;
/// memory after them is unchanged. kept is [rows, entries], counts [rows].
void threshold_rows(Stream stream, const kernels::SelectShape& shape, float threshold,
                    Span<const float> scores, Span<std::int32_t> kept, Span<std::int32_t> counts);

}  // namespace kvsim::KVSIM_EXECUTOR
