#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/shapes.hpp"
#include "models/units/dtype.hpp"

// Reference implementations of the kernels in double precision on the CPU, based on models/math for
// algorithms of methods. Inputs are the kernel's inputs, rounded as it stores them. Errors:
// ContractError if a span's length disagrees with the shape.

namespace kvsim::kernels {

struct DecodeReference {
  std::vector<double> out;            // [batch, n_heads, head_dim]
  std::vector<double> logits;         // [batch, n_heads, entries]
  std::vector<double> probabilities;  // [batch, n_heads, entries]
  std::vector<double> log_sum;        // [batch, n_heads]
};

/// q [batch, n_heads, head_dim]; keys, values [batch, n_kv_heads, capacity, head_dim]; bias
/// [batch, n_kv_heads, capacity] or empty.
[[nodiscard]] DecodeReference decode_reference(const DecodeShape& shape, double scale,
                                               std::span<const float> q,
                                               std::span<const float> keys,
                                               std::span<const float> values,
                                               std::span<const float> bias);

/// The same for a ragged batch: row b attends to the first lengths[b] entries of cache cache_of[b]
/// (its own if cache_of is empty); keys, values and bias have shape.caches() sequences. Rows of
/// length 0 have out 0 and log_sum -infinity. logits and probabilities stay empty.
[[nodiscard]] DecodeReference ragged_reference(
    const DecodeShape& shape, double scale, std::span<const float> q, std::span<const float> keys,
    std::span<const float> values, std::span<const float> bias,
    std::span<const std::int32_t> lengths, std::span<const std::int32_t> cache_of);

/// [rows, entries]: scores after the step. Both inputs have rows of shape.stride.
[[nodiscard]] std::vector<double> update_scores_reference(const ScoreShape& shape, double decay,
                                                          std::span<const float> probabilities,
                                                          std::span<const float> scores);

/// [rows]: index of the first minimum.
[[nodiscard]] std::vector<std::int64_t> argmin_reference(const SelectShape& shape,
                                                         std::span<const float> scores);

/// [rows, min(keep, entries)]: positions of the highest scores in ascending order; among equal
/// scores the first are kept.
[[nodiscard]] std::vector<std::int32_t> top_reference(const SelectShape& shape,
                                                      std::span<const float> scores);

/// [n_kv_heads, tokens]: attention mass of each key from queries shape.first and later. q [n_heads,
/// tokens, head_dim], keys [n_kv_heads, tokens, head_dim].
[[nodiscard]] std::vector<double> prefill_score_reference(const PrefillScoreShape& shape,
                                                          double scale, double decay,
                                                          std::span<const float> q,
                                                          std::span<const float> keys);

/// [rows, width]: probabilities of rows of logits.
[[nodiscard]] std::vector<double> softmax_reference(const RowsShape& shape,
                                                    std::span<const float> logits);

/// [rows, width]: x weight / sqrt(mean x^2 + epsilon).
[[nodiscard]] std::vector<double> rms_norm_reference(const RowsShape& shape, double epsilon,
                                                     std::span<const float> x,
                                                     std::span<const float> weight);

/// [m, n]: a linear layer of a [m, k] and weights b [n, k], with bias [n] or none, and the exact
/// GELU if `gelu`.
[[nodiscard]] std::vector<double> gemm_reference(const GemmShape& shape, std::span<const float> a,
                                                 std::span<const float> b,
                                                 std::span<const float> bias, bool gelu);

/// The values that a KIVI cache of `bits` reads for x [rows, entries, head_dim]: keys by channel,
/// values by token. shape.capacity is ignored.
[[nodiscard]] std::vector<float> kivi_reference(const QuantShape& shape, std::int64_t bits,
                                                bool keys, std::span<const float> x);
/// zero + step * code.
[[nodiscard]] float dequantised(std::int32_t code, float step, float zero);

/// The values that an fp8 (e4m3) cache with one scale reads for x.
[[nodiscard]] std::vector<float> fp8_reference(float scale, std::span<const float> x);
/// Value of an e4m3 code below 256. No NaN.
[[nodiscard]] float fp8_value(std::uint32_t code);

/// factor * x times the Sylvester Hadamard matrix, rows x [rows, head_dim].
[[nodiscard]] std::vector<double> rotate_reference(std::int64_t head_dim, double factor,
                                                   std::span<const float> x);

// The values that caches of engines' formats read for rows x [rows, head_dim].

enum class TokenHeadCode : std::uint8_t { kInt8, kE4m3 };
[[nodiscard]] std::vector<float> token_head_reference(TokenHeadCode code, std::int64_t head_dim,
                                                      std::span<const float> x);
/// In the rotated basis: rows are not rotated back. dtype: type of x, to which rotated rows are
/// rounded.
[[nodiscard]] std::vector<float> int4_rotated_reference(Dtype dtype, std::int64_t head_dim,
                                                        std::span<const float> x);
[[nodiscard]] std::vector<float> nvfp4_reference(float global, bool four_over_six,
                                                 std::span<const float> x);
/// In the rotated basis. Norms are summed in the order of lanes of eight channels. bits: 3 or 4.
[[nodiscard]] std::vector<float> turboquant_key_reference(std::int32_t bits, std::int64_t head_dim,
                                                          std::span<const float> x);
[[nodiscard]] std::vector<float> turboquant_value_reference(std::int32_t bits,
                                                            std::int64_t head_dim,
                                                            std::span<const float> x);
/// Key of norm `norm` (as stored) and codes [head_dim], in the rotated basis.
[[nodiscard]] std::vector<float> turboquant_key(std::int32_t bits, float norm,
                                                std::span<const std::int32_t> codes);

}  // namespace kvsim::kernels
