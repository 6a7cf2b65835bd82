#include "models/methods/prefill/patterns.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "models/math/attention/causal_attention.hpp"
#include "models/units/check.hpp"

namespace kvsim {

TilePattern::TilePattern(std::int64_t prompt, std::int64_t block)
    : block_{block},
      blocks_{(prompt + block - 1) / block},
      tiles_(static_cast<std::size_t>(blocks_ * blocks_)) {}

void TilePattern::add_all() {
  for (std::int64_t row = 0; row < blocks_; ++row) {
    for (std::int64_t column = 0; column <= row; ++column) add(row, column);
  }
}

void TilePattern::row(std::int64_t t, std::span<std::uint8_t> computed) const {
  for (std::int64_t column = 0; column <= t / block_; ++column) {
    const std::int64_t from = column * block_;
    const std::int64_t to = std::min(from + block_, t + 1);
    std::fill(computed.begin() + from, computed.begin() + to, tiles_[index(t / block_, column)]);
  }
}

void VerticalSlashPattern::row(std::int64_t t, std::span<std::uint8_t> computed) const {
  for (std::int64_t i = 0; i <= t; ++i) {
    computed[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(
        columns_[static_cast<std::size_t>(i)] | distances_[static_cast<std::size_t>(t - i)]);
  }
}

LastRows last_rows(const PrefillHead& head, std::int64_t rows) {
  KVSIM_CHECK(rows >= 1 && rows <= head.prompt, "{} of {} rows", rows, head.prompt);
  LastRows out;
  out.by_key.resize(static_cast<std::size_t>(head.prompt));
  out.by_distance.resize(out.by_key.size());
  each_causal_row(head.q, head.keys, 1, head.head_dim, head.prompt, head.prompt, head.prompt - rows,
                  head.scale, [&](const CausalRow& row) {
                    const auto t = static_cast<std::size_t>(row.t);
                    for (std::size_t i = 0; i <= t; ++i) {
                      out.by_key[i] += row.probabilities[i];
                      out.by_distance[t - i] += row.probabilities[i];
                    }
                  });
  return out;
}

void softmax(std::span<double> logits) {
  const double max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (double& x : logits) {
    x = std::exp(x - max);
    sum += x;
  }
  for (double& x : logits) x /= sum;
}

std::vector<std::int64_t> by_falling(std::span<const double> values) {
  std::vector<std::int64_t> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return values[static_cast<std::size_t>(a)] > values[static_cast<std::size_t>(b)];
  });
  return order;
}

std::vector<double> block_means(std::span<const float> rows, std::int32_t d, std::int64_t block) {
  const auto width = static_cast<std::size_t>(d);
  const std::size_t n = rows.size() / width;
  const auto size = static_cast<std::size_t>(block);
  std::vector<double> means((n + size - 1) / size * width);
  for (std::size_t t = 0; t < n; ++t) {
    const std::size_t b = t / size;
    const auto count = static_cast<double>(std::min(size, n - b * size));
    for (std::size_t j = 0; j < width; ++j) {
      means[b * width + j] += static_cast<double>(rows[t * width + j]) / count;
    }
  }
  return means;
}

double dot(std::span<const double> a, std::span<const double> b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

}  // namespace kvsim
