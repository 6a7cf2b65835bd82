#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/math/attention/rope.hpp"

namespace kvsim {

/// Mean and population covariance of a head's queries: [d] and [d, d] row-major.
struct QueryMoments {
  std::vector<double> mean, covariance;
};

/// Moments of queries before RoPE. `q` [n, d] holds queries recorded after RoPE; row r is at
/// position `first_position` + r. Throws ContractError if n < 1.
[[nodiscard]] QueryMoments query_moments(std::span<const float> q, std::int64_t first_position,
                                         std::int32_t head_dim, const Rope& rope);

/// The moments of a query at one of `count` future positions from `first` on, using the mean
/// rotation M: mean <- M mean, covariance <- M covariance M^T.
/// Source: ExpectedAttention (kvpress), which uses the mean rotation for all of these positions.
void turn_to_future(QueryMoments& moments, const Rope& rope, std::int64_t first,
                    std::int64_t count);

/// ln E[exp(scale q . k)] for a Gaussian q with these moments, for each key:
///
///   z_i = scale * mean . k_i + scale^2 / 2 * k_i^T covariance k_i
/// keys     [n, d] after RoPE; `with_covariance` = false omits the second term
/// returns  [n]
/// Source: ExpectedAttention (kvpress), the moment-generating function of a normal variable.
[[nodiscard]] std::vector<double> expected_logits(const QueryMoments& moments,
                                                  std::span<const float> keys,
                                                  std::int32_t head_dim, double scale,
                                                  bool with_covariance);

/// Mean of rows [n, d] before RoPE. The rows were recorded after RoPE; row r is at position
/// `first_position` + r.
[[nodiscard]] std::vector<double> mean_before_rope(std::span<const float> rows,
                                                   std::int32_t head_dim, const Rope& rope,
                                                   std::int64_t first_position = 0);

/// How far back a head attends: the mean over `positions` of the last query's cumulative attention,
/// if all queries are `query` and all keys are `key` except for their positions. 1: all attention
/// on the first token; 1 / positions: all on the last.
/// Source: DuoAttention on the fly (kvpress, duo_attention_on_the_fly), with 500 positions.
[[nodiscard]] double retrieval_score(std::span<const double> query, std::span<const double> key,
                                     const Rope& rope, std::int64_t positions, double scale);

}  // namespace kvsim
