#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Attention mass of a prompt's keys as eager code makes it: the matrix of logits, its softmax in
// fp32, the sums of its columns. All query rows at once, a chunk of them, or a last window.
// Errors: ContractError if head_dim is not 64 or 128, n_heads no multiple of n_kv_heads, a row
// outside the prompt, or a span is shorter than its shape.

/// logits[h, r, i] = scale q[h, first + r, :] . k[h/group, i, :], -infinity for i > first + r, for
/// the `rows` query rows from `first` on: [n_heads, rows, tokens] of T (float, kv::Half,
/// kv::BFloat16). q [n_heads, tokens, head_dim], keys [n_kv_heads, tokens, head_dim].
template <class T>
void score_matrix(Stream stream, const kernels::EagerScoreShape& shape, float scale,
                  Span<const T> q, Span<const T> keys, Span<T> logits);

/// mass[h, i] (+)= sum over the group's heads and r < rows of decay^(tokens - 1 - first - r)
/// probabilities[h * group + g, r, i]; probabilities [n_heads, rows, tokens], mass [n_kv_heads,
/// tokens], added to where `accumulates`: a further chunk's.
void column_sums(Stream stream, const kernels::EagerScoreShape& shape, float decay,
                 bool accumulates, Span<const float> probabilities, Span<float> mass);

/// The three of them one after another (softmax_rows between), chunk by chunk of `shape.rows` query
/// rows from shape.first to the prompt's end. logits and probabilities hold a chunk.
template <class T>
struct EagerScores {
  Span<const T> q, keys;
  float scale = 1, decay = 1;
  Span<T> logits;             // [n_heads, rows, tokens], scratch
  Span<float> probabilities;  // [n_heads, rows, tokens], scratch
  Span<float> mass;           // [n_kv_heads, tokens]
};
template <class T>
void eager_scores(Stream stream, const kernels::EagerScoreShape& shape,
                  const EagerScores<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
