#pragma once

#include "kernels/cuda_sim/kernel.hpp"
#include "kernels/shapes.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Linear scores of tokens from their hidden states, and the tokens that are kept (KVzap):
///
///   scores[h, t] = weights[h, :] . hidden[t, :] + biases[h];  keeps[h, t] = scores[h, t] >=
///   threshold
///
/// hidden [tokens, inputs] of T (float, kv::Half, kv::BFloat16), weights [heads, inputs], biases
/// [heads]; keeps is 0 or 1; sums are fp32. Source: models/math/attention/surrogate.hpp without an
/// inner layer. Errors: ContractError if inputs are not a multiple of 16 bytes, or a span is
/// shorter than its shape.
template <class T>
struct LinearScores {
  Span<const T> hidden;
  Span<const float> weights, biases;
  float threshold = 0;
  Span<float> scores;        // [heads, tokens]
  Span<std::int32_t> keeps;  // [heads, tokens]
};
template <class T>
void linear_scores(Stream stream, const kernels::SurrogateShape& shape,
                   const LinearScores<T>& arguments);

/// The same with an inner layer, scores = W2 GELU(W1 hidden + b1) + b2: a GEMM, then linear_scores
/// of its rows. outer.hidden is the inner layer's memory. Errors: as above, and ContractError
/// unless width is a multiple of 8.
template <class T>
struct MlpScores {
  Span<const T> hidden;      // [tokens, inputs]
  Span<const float> w1, b1;  // [width, inputs], [width]
  Span<float> inner;         // [tokens, width], scratch
  LinearScores<float> outer;
};
template <class T>
void mlp_scores(Stream stream, const kernels::SurrogateShape& shape, std::int64_t width,
                const MlpScores<T>& arguments);

}  // namespace kvsim::KVSIM_EXECUTOR
