#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

// Attention mass of a prompt's keys as computed by eager code: the matrix of logits, its softmax in
// fp32 and its column sums. Covers all query rows at once, a chunk of them, or a last window.
// Errors: ContractError if head_dim is not 64 or 128, n_heads is not a multiple of n_kv_heads, a
// row is outside the prompt, or a span is shorter than its shape.

/// logits[h, r, i] = scale q[h, first + r, :] . k[h/group, i, :], -infinity for i > first + r, for
/// `rows` query rows starting at `first`: [n_heads, rows, tokens] of T (float, kv::Half,
/// kv::BFloat16). q [n_heads, tokens, head_dim], keys [n_kv_heads, tokens, head_dim].
template <class T>
void score_matrix(Stream stream, const kernels::EagerScoreShape& shape, float scale,
                  Span<const T> q, Span<const T> keys, Span<T> logits);

/// mass[h, i] (+)= sum over the group's heads and r < rows of decay^(tokens - 1 - first - r)
/// probabilities[h * group + g, r, i]; probabilities [n_heads, rows, tokens], mass [n_kv_heads,
/// tokens], added to if `accumulates` (a further chunk).
void column_sums(Stream stream, const kernels::EagerScoreShape& shape, float decay,
                 bool accumulates, Span<const float> probabilities, Span<float> mass);

/// Runs score_matrix, softmax_rows and column_sums for each chunk of `shape.rows` query rows from
/// shape.first to the prompt's end. logits and probabilities hold one chunk.
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
