#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/math/attention/rope.hpp"

namespace kvsim {

/// Statistics of a query head before RoPE, whose pairs of channels are complex numbers q_f:
/// mean of q_f and mean of |q_f|, each [d / 2].
struct FrequencyStats {
  std::vector<double> real, imaginary, magnitude;
};

/// Statistics of queries `q` [n, d], which were recorded after RoPE; row r is at position r.
/// Throws ContractError if n < 1.
[[nodiscard]] FrequencyStats frequency_stats(std::span<const float> q, const Rope& rope);

/// Logits that queries with these statistics would have for a key at distances beyond the end of
/// the sequence, for each key:
///
///   s_i = mean over o in {1, 2, 4, ..., 65536} of
///           sum over f of |m_f| |k_f| cos((tokens - p_i + o) w_f + arg(m_f conj(k_f)))
///         + sum over f of (a_f - |m_f|) |k_f|
///
/// with m_f, a_f the means of q_f and |q_f|, k_f the key before RoPE and w_f the angle per
/// position. A key after RoPE is k_f e^(i p w_f), so positions cancel: neither they nor keys before
/// RoPE are needed.
/// keys     [n, d] after RoPE
/// maximum over o instead of the mean
/// returns  [n]
/// Source: TriAttention, released code (score_keys_for_round).
[[nodiscard]] std::vector<double> frequency_scores(const FrequencyStats& stats,
                                                   std::span<const float> keys, std::int64_t tokens,
                                                   bool maximum, const Rope& rope);

}  // namespace kvsim
