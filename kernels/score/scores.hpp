#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// scores[r, e] = decay * scores[r, e] + sum over g of probabilities[r * group + g, e]
///
/// The score update of attention-score methods in one step: decay = 1 accumulates (H2O), decay < 1
/// forgets. A row is a stored head. Sums are fp32; the group is summed first. Errors: ContractError
/// if shape.stride is not a multiple of 4 or below shape.entries, or a span is shorter than its
/// shape.
void update_scores(Stream stream, const kernels::ScoreShape& shape, float decay,
                   Span<const float> probabilities, Span<float> scores);

/// A moving average of s = e^logit, kept as its logarithm so that nothing overflows:
///
///   log_average[r, e] = ln(keep e^log_average[r, e] + (1 - keep) / group sum over g of
///                          e^logits[r * group + g, e])
///
/// logits has the layout of probabilities above; log_average starts at -infinity. Source: KeepKV
/// (Tian et al. 2025), eq. (8). Errors: as above, and ContractError unless keep is in (0, 1).
void update_log_average(Stream stream, const kernels::ScoreShape& shape, float keep,
                        Span<const float> logits, Span<float> log_average);

/// Fusion over a window of recent steps, whose rows are in a ring [rows, window, stride]:
///
///   ring[r, slot, e] = sum over g of probabilities[r * group + g, e]
///   fused[r, e] = sum (or max) over the window's rows of ring[r, :, e]
///
/// All rows of the window except `slot` must have been written. Source: MorphKV (2025), F. Errors:
/// as above, and ContractError unless window >= 1 and slot is in [0, window).
void fuse_window(Stream stream, const kernels::WindowShape& shape, std::int64_t slot, bool maximum,
                 Span<const float> probabilities, Span<float> ring, Span<float> fused);

}  // namespace kvsim::KVSIM_EXECUTOR
