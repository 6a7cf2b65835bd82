#pragma once

// Synthetic vectors for tests: the group of one KV head, with structure so that attention is
// neither flat nor a single spike.

#include <cmath>
#include <cstdint>
#include <numbers>
#include <random>
#include <vector>

#include "sim/replay/head_replay.hpp"

namespace kvsim::test {

/// Standard normal numbers that are equal with every standard library (std::normal_distribution is
/// not).
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : engine_{seed} {}
  double operator()() {
    const double u = (static_cast<double>(engine_() >> 11U) + 0.5) * 0x1p-53;
    const double v = static_cast<double>(engine_() >> 11U) * 0x1p-53;
    return std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
  }

 private:
  std::mt19937_64 engine_;
};

/// Vectors that own their storage.
struct OwnedHead {
  std::vector<float> q, keys, values;
  HeadVectors view;
};

inline OwnedHead random_head(std::int32_t group, std::int32_t d, std::int64_t tokens,
                             std::int64_t prompt, std::uint64_t seed = 1) {
  Normal normal{seed};
  OwnedHead head;
  const auto rows = static_cast<std::size_t>(tokens * d);
  for (std::size_t i = 0; i < rows; ++i) head.keys.push_back(static_cast<float>(normal()));
  for (std::size_t i = 0; i < rows; ++i) head.values.push_back(static_cast<float>(normal()));
  // A query points towards the key of a random earlier token: this produces heavy hitters and
  // recency.
  std::mt19937_64 pick{seed + 17};
  for (std::int32_t g = 0; g < group; ++g) {
    for (std::int64_t t = 0; t < tokens; ++t) {
      const auto target = static_cast<std::size_t>(pick() % static_cast<std::uint64_t>(t + 1));
      for (std::int32_t j = 0; j < d; ++j) {
        const double lean = static_cast<double>(
            head.keys[target * static_cast<std::size_t>(d) + static_cast<std::size_t>(j)]);
        head.q.push_back(static_cast<float>(normal() + lean));
      }
    }
  }
  head.view = {.q = head.q,
               .keys = head.keys,
               .values = head.values,
               .group = group,
               .head_dim = d,
               .tokens = tokens,
               .prompt = prompt,
               .scale = 1.0 / std::sqrt(static_cast<double>(d))};
  return head;
}

inline std::span<const float> row_of(std::span<const float> rows, std::int64_t row,
                                     std::int32_t d) {
  return rows.subspan(static_cast<std::size_t>(row) * static_cast<std::size_t>(d),
                      static_cast<std::size_t>(d));
}

/// Query of head g at position t.
inline std::span<const float> query_of(const HeadVectors& head, std::int32_t g, std::int64_t t) {
  return row_of(head.q, g * head.tokens + t, head.head_dim);
}

/// The group's queries at position t, [group, d].
inline std::vector<float> queries_at(const HeadVectors& head, std::int64_t t) {
  std::vector<float> q;
  for (std::int32_t g = 0; g < head.group; ++g) {
    const auto row = query_of(head, g, t);
    q.insert(q.end(), row.begin(), row.end());
  }
  return q;
}

/// Softmax attention of one query over the listed positions, by a direct implementation.
inline std::vector<double> naive_attention(const HeadVectors& head, std::int32_t g, std::int64_t t,
                                           const std::vector<std::int32_t>& positions) {
  std::vector<double> p;
  double sum = 0;
  for (const std::int32_t i : positions) {
    double logit = 0;
    for (std::int32_t j = 0; j < head.head_dim; ++j) {
      const auto at = static_cast<std::size_t>(j);
      logit += static_cast<double>(query_of(head, g, t)[at]) *
               static_cast<double>(row_of(head.keys, i, head.head_dim)[at]);
    }
    p.push_back(std::exp(logit * head.scale));
    sum += p.back();
  }
  for (double& x : p) x /= sum;
  return p;
}

}  // namespace kvsim::test
