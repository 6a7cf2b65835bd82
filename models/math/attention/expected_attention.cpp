#include "models/math/attention/expected_attention.hpp"

#include <utility>

#include "models/math/attention/key_redundancy.hpp"
#include "models/units/check.hpp"

namespace kvsim {

QueryMoments query_moments(std::span<const float> q, std::int64_t first_position,
                           std::int32_t head_dim, const Rope& rope) {
  const auto d = static_cast<std::size_t>(head_dim);
  const std::size_t n = q.size() / d;
  KVSIM_CHECK(n >= 1 && q.size() == n * d, "{} numbers are not rows of {}", q.size(), d);
  std::vector<double> rows(q.begin(), q.end());
  QueryMoments moments{std::vector<double>(d, 0.0), std::vector<double>(d * d, 0.0)};
  for (std::size_t r = 0; r < n; ++r) {
    const std::span<double> row = std::span{rows}.subspan(r * d, d);
    rope.rotate(row, -(first_position + static_cast<std::int64_t>(r)));
    for (std::size_t j = 0; j < d; ++j) moments.mean[j] += row[j];
  }
  for (double& x : moments.mean) x /= static_cast<double>(n);
  for (std::size_t r = 0; r < n; ++r) {
    double* row = rows.data() + r * d;
    for (std::size_t j = 0; j < d; ++j) row[j] -= moments.mean[j];
    for (std::size_t i = 0; i < d; ++i) {
      double* into = moments.covariance.data() + i * d;
      const double x = row[i];
      for (std::size_t j = 0; j < d; ++j) into[j] += x * row[j];
    }
  }
  for (double& x : moments.covariance) x /= static_cast<double>(n);
  return moments;
}

void turn_to_future(QueryMoments& moments, const Rope& rope, std::int64_t first,
                    std::int64_t count) {
  const std::size_t d = moments.mean.size();
  const Rope::MeanRotation mean = rope.mean_rotation(first, count);
  rope.turn(moments.mean, mean);
  // Rotating the rows gives C M^T; transposing and rotating again gives M C M^T (C is symmetric).
  for (int side = 0; side < 2; ++side) {
    for (std::size_t i = 0; i < d; ++i) {
      rope.turn(std::span{moments.covariance}.subspan(i * d, d), mean);
    }
    for (std::size_t i = 0; i < d; ++i) {
      for (std::size_t j = i + 1; j < d; ++j) {
        std::swap(moments.covariance[i * d + j], moments.covariance[j * d + i]);
      }
    }
  }
}

std::vector<double> expected_logits(const QueryMoments& moments, std::span<const float> keys,
                                    std::int32_t head_dim, double scale, bool with_covariance) {
  const auto d = static_cast<std::size_t>(head_dim);
  const std::size_t n = keys.size() / d;
  KVSIM_CHECK(moments.mean.size() == d && keys.size() == n * d, "{} means, {} key numbers, d = {}",
              moments.mean.size(), keys.size(), d);
  std::vector<double> logits(n);
  std::vector<double> key(d);
  std::vector<double> product(d);
  for (std::size_t i = 0; i < n; ++i) {
    double linear = 0;
    for (std::size_t j = 0; j < d; ++j) {
      key[j] = static_cast<double>(keys[i * d + j]);
      linear += moments.mean[j] * key[j];
    }
    double square = 0;
    if (with_covariance) {
      product.assign(d, 0.0);
      for (std::size_t j = 0; j < d; ++j) {
        const double* row = moments.covariance.data() + j * d;
        for (std::size_t c = 0; c < d; ++c) product[c] += key[j] * row[c];
      }
      for (std::size_t j = 0; j < d; ++j) square += product[j] * key[j];
    }
    logits[i] = scale * linear + scale * scale / 2 * square;
  }
  return logits;
}

std::vector<double> mean_before_rope(std::span<const float> rows, std::int32_t head_dim,
                                     const Rope& rope, std::int64_t first_position) {
  const auto d = static_cast<std::size_t>(head_dim);
  const std::size_t n = rows.size() / d;
  KVSIM_CHECK(n >= 1 && rows.size() == n * d, "{} numbers are not rows of {}", rows.size(), d);
  std::vector<double> mean(d, 0.0);
  std::vector<double> row(d);
  for (std::size_t r = 0; r < n; ++r) {
    row.assign(rows.begin() + static_cast<std::ptrdiff_t>(r * d),
               rows.begin() + static_cast<std::ptrdiff_t>((r + 1) * d));
    rope.rotate(row, -(first_position + static_cast<std::int64_t>(r)));
    for (std::size_t j = 0; j < d; ++j) mean[j] += row[j];
  }
  for (double& x : mean) x /= static_cast<double>(n);
  return mean;
}

double retrieval_score(std::span<const double> query, std::span<const double> key, const Rope& rope,
                       std::int64_t positions, double scale) {
  KVSIM_CHECK(positions >= 1 && query.size() == key.size(), "{} positions, rows of {} and {}",
              positions, query.size(), key.size());
  std::vector<double> weights(static_cast<std::size_t>(positions));
  std::vector<double> turned;
  for (std::int64_t back = 0; back < positions; ++back) {  // only the distance matters
    turned.assign(key.begin(), key.end());
    rope.rotate(turned, -back);
    double logit = 0;
    for (std::size_t j = 0; j < turned.size(); ++j) logit += query[j] * turned[j];
    weights[static_cast<std::size_t>(positions - 1 - back)] = scale * logit;
  }
  softmax_in_place(weights);
  double cumulated = 0;
  double sum = 0;
  for (const double w : weights) {
    cumulated += w;
    sum += cumulated;
  }
  return sum / static_cast<double>(positions);
}

}  // namespace kvsim
