#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/shapes.hpp"

// What each kernel computes, in double precision on the CPU, over models/math where the algorithm
// is one of the methods'. Inputs are the numbers the kernel is given, rounded as it stores them.
// Errors: ContractError if a span's length disagrees with the shape.

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

/// [rows, entries]: scores after the step. Both inputs with rows of shape.stride.
[[nodiscard]] std::vector<double> update_scores_reference(const ScoreShape& shape, double decay,
                                                          std::span<const float> probabilities,
                                                          std::span<const float> scores);

/// [rows]: the first of the least.
[[nodiscard]] std::vector<std::int64_t> argmin_reference(const SelectShape& shape,
                                                         std::span<const float> scores);

/// [rows, min(keep, entries)]: the greatest, of equals the first, ascending.
[[nodiscard]] std::vector<std::int32_t> top_reference(const SelectShape& shape,
                                                      std::span<const float> scores);

}  // namespace kvsim::kernels
