#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// scores[r, e] = decay * scores[r, e] + sum over g of probabilities[r * group + g, e]
///
/// What attention-score methods learn of a step: decay 1 accumulates (H2O), below 1 forgets. A row
/// is a stored head; sums are fp32, the group's first.
/// Errors: ContractError if shape.stride is no multiple of 4 or below shape.entries, or a span is
/// shorter than its shape.
void update_scores(Stream stream, const kernels::ScoreShape& shape, float decay,
                   Span<const float> probabilities, Span<float> scores);

}  // namespace kvsim::KVSIM_EXECUTOR
