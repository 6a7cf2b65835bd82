#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "models/math/tiles/running_attention.hpp"

namespace kvsim {

/// Attention of consecutive known queries over the full cache: the reference for every method.
struct CausalAttention {
  std::vector<float> out;       // [rows, group, d]
  std::vector<double> log_sum;  // [rows, group]: log-sum-exp of a row's logits
};

/// The vectors of one group: q [group, tokens, d], head-major and unscaled; keys and values
/// [tokens, d].
struct CausalRows {
  std::span<const float> q, keys, values;
  std::int32_t head_dim = 0;
  std::int64_t tokens = 0;
};

/// Computes the attention of the queries at positions first … first + steps - 1, each over keys up
/// to its position: out [steps, group, d], log_sum [steps, group].
void attend_causally(RunningAttention& attention, const CausalRows& rows, std::int64_t first,
                     std::size_t steps, std::span<float> out, std::span<double> log_sum);

/// The same from position `first` to the end, in blocks of block_steps(group) steps.
///
/// q       [group, tokens, d]: head-major, unscaled
/// keys, values [tokens, d]
/// Throws ContractError if a span's length disagrees, or first is outside [0, tokens].
[[nodiscard]] CausalAttention causal_attention(std::span<const float> q,
                                               std::span<const float> keys,
                                               std::span<const float> values, std::int32_t group,
                                               std::int32_t head_dim, std::int64_t tokens,
                                               std::int64_t first, double scale);

/// One row of causal attention: query head g at position t over keys 0 … t.
struct CausalRow {
  std::int32_t g = 0;
  std::int64_t t = 0;
  std::span<const double> logits, probabilities;  // [t + 1]
};

/// Calls `visit` with the rows of positions first … prompt-1, ordered by position, then query head.
/// A row is valid only during its call. Computed in fp64, by blocks of rows. Shapes and errors as
/// in prompt_column_sums.
void each_causal_row(std::span<const float> q, std::span<const float> keys, std::int32_t group,
                     std::int32_t head_dim, std::int64_t tokens, std::int64_t prompt,
                     std::int64_t first, double scale,
                     const std::function<void(const CausalRow&)>& visit);

/// Products of attention weights and values in fp64.
class WeightedValues {
 public:
  /// values [entries, head_dim]
  WeightedValues(std::span<const float> values, std::int32_t head_dim);
  /// out [rows, head_dim] = weights [rows, seen] times the first `seen` values; rows of weights are
  /// `stride` numbers apart. Errors: ContractError if a span is too short.
  void product(std::span<const double> weights, std::size_t rows, std::size_t seen,
               std::size_t stride, std::span<double> out) const;

 private:
  std::size_t d_;
  std::vector<double> values_;
};

/// Returns the attention mass that each prompt token receives from the prompt's queries, with
/// larger weights for later queries:
///
///   s[i] = sum over t >= i and over the group of decay^(prompt-1-t) a[t, i]
///
/// decay = 1 gives H2O's accumulated score, other values ZeroMerge's eq. (5) unrolled. Computed in
/// fp64. q [group, tokens, d] and keys [tokens, d], of which the first `prompt` rows are used.
/// Returns [prompt]; with decay 1 it sums to group * prompt.
[[nodiscard]] std::vector<double> prompt_column_sums(std::span<const float> q,
                                                     std::span<const float> keys,
                                                     std::int32_t group, std::int32_t head_dim,
                                                     std::int64_t tokens, std::int64_t prompt,
                                                     double scale, double decay);

}  // namespace kvsim
