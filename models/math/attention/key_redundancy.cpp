#include "models/math/attention/key_redundancy.hpp"

#include <algorithm>
#include <cmath>

#include <Eigen/Dense>

#include "models/units/check.hpp"

namespace kvsim {

void softmax_in_place(std::span<double> x) {
  KVSIM_CHECK(!x.empty(), "softmax over nothing");
  const double highest = *std::max_element(x.begin(), x.end());
  double sum = 0;
  for (double& each : x) {
    each = std::exp(each - highest);
    sum += each;
  }
  for (double& each : x) each /= sum;
}

std::vector<double> pool(std::span<const double> x, std::int32_t width, bool maximum) {
  KVSIM_CHECK(width >= 1 && width % 2 == 1, "pooling of width {}", width);
  const auto n = static_cast<std::int64_t>(x.size());
  const std::int64_t reach = width / 2;
  std::vector<double> pooled;
  pooled.reserve(x.size());
  for (std::int64_t i = 0; i < n; ++i) {
    double highest = x[static_cast<std::size_t>(i)];
    double sum = 0;
    for (std::int64_t j = std::max<std::int64_t>(i - reach, 0); j <= std::min(i + reach, n - 1);
         ++j) {
      highest = std::max(highest, x[static_cast<std::size_t>(j)]);
      sum += x[static_cast<std::size_t>(j)];
    }
    pooled.push_back(maximum ? highest : sum / width);
  }
  return pooled;
}

std::vector<double> key_redundancy(std::span<const float> keys, std::int32_t head_dim,
                                   const RedundancyRule& rule) {
  const auto d = static_cast<std::size_t>(head_dim);
  const std::size_t n = keys.size() / d;
  KVSIM_CHECK(n >= 1 && keys.size() == n * d, "{} numbers are not rows of {}", keys.size(), d);
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const auto as_index = [](std::size_t i) { return static_cast<Eigen::Index>(i); };
  const Matrix k =
      Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>{
          keys.data(), as_index(n), as_index(d)}
          .cast<double>();
  const Eigen::VectorXd norm = k.rowwise().norm();
  constexpr std::size_t kRows = 64;  // whose products with all keys are computed together
  Matrix products;
  const bool forward =
      rule.retain == RetainDirection::kFirst || rule.retain == RetainDirection::kFirstPercent;
  const bool one = rule.retain == RetainDirection::kLast || rule.retain == RetainDirection::kFirst;
  const std::size_t max =
      one ? 1
          : std::max<std::size_t>(
                static_cast<std::size_t>(static_cast<double>(n) * rule.retain_ratio), 1);
  std::vector<double> sums(n, 0.0);
  std::vector<double> row(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (i % kRows == 0) {
      products.noalias() =
          k.middleRows(as_index(i), as_index(std::min(kRows, n - i))) * k.transpose();
    }
    for (std::size_t j = 0; j < n; ++j) {
      const double norms = norm[as_index(i)] * norm[as_index(j)];
      row[j] = j == i || norms == 0 ? 0.0 : products(as_index(i % kRows), as_index(j)) / norms;
    }
    std::size_t spared = 0;
    for (std::size_t step = 0; step < n && spared < max; ++step) {
      const std::size_t j = forward ? step : n - 1 - step;
      if (row[j] <= rule.threshold) continue;
      row[j] = 0;
      ++spared;
    }
    for (std::size_t j = 0; j < n; ++j) sums[j] += row[j];
  }
  for (double& x : sums) x /= static_cast<double>(n);
  softmax_in_place(sums);
  return sums;
}

}  // namespace kvsim
