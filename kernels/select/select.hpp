#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Choosing among the scores of rows [rows, stride], of which the first `entries` count. A score is
// no NaN; -0 and 0 are equal. Fewer than 2^31 entries a row.
// Errors: ContractError if shape.stride is no multiple of 4 or below shape.entries, or a span is
// shorter than its shape.

/// position[r] = the least score's entry, of equals the first.
void argmin_rows(Stream stream, const kernels::SelectShape& shape, Span<const float> scores,
                 Span<std::int64_t> position);

/// kept[r, :] = the entries of the `keep` greatest scores, ascending; of equals the first ones.
/// kept is [rows, min(keep, entries)].
void top_rows(Stream stream, const kernels::SelectShape& shape, Span<const float> scores,
              Span<std::int32_t> kept);

/// kept[r, :] = the entries whose score is `threshold` at least, ascending, counts[r] of them;
/// memory behind them is unchanged. kept is [rows, entries], counts [rows].
void threshold_rows(Stream stream, const kernels::SelectShape& shape, float threshold,
                    Span<const float> scores, Span<std::int32_t> kept, Span<std::int32_t> counts);

}  // namespace kvsim::KVSIM_EXECUTOR
