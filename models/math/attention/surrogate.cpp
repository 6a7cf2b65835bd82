#include "models/math/attention/surrogate.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <Eigen/Dense>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

}  // namespace

double gelu(double x) { return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2)); }

std::vector<float> Surrogate::predict(std::span<const float> rows) const {
  KVSIM_CHECK(inputs >= 1 && outputs >= 1 && std::ssize(rows) % inputs == 0,
              "{} numbers, {} inputs", rows.size(), inputs);
  const std::int64_t n = std::ssize(rows) / inputs;
  const std::int32_t last = width > 0 ? width : inputs;
  KVSIM_CHECK(std::ssize(w1) == static_cast<std::int64_t>(width) * inputs &&
                  std::ssize(b1) == width && std::ssize(b2) == outputs &&
                  std::ssize(w2) == static_cast<std::int64_t>(outputs) * last,
              "weights of {}, {}, {} and {} numbers", w1.size(), b1.size(), w2.size(), b2.size());
  const Eigen::Map<const Floats> head{w2.data(), outputs, last};
  const Eigen::Map<const Eigen::Matrix<float, 1, Eigen::Dynamic>> bias{b2.data(), outputs};
  std::vector<float> out(static_cast<std::size_t>(n * outputs));
  constexpr std::int64_t kBlock = 256;  // bounds the memory of the inner layer
  for (std::int64_t at = 0; at < n; at += kBlock) {
    const std::int64_t count = std::min(kBlock, n - at);
    Matrix x = Eigen::Map<const Floats>{rows.data() + at * inputs, count, inputs}.cast<double>();
    if (width > 0) {
      const Matrix w = Eigen::Map<const Floats>{w1.data(), width, inputs}.cast<double>();
      Matrix inner = x * w.transpose();
      for (std::int64_t r = 0; r < count; ++r) {
        for (std::int64_t j = 0; j < width; ++j) {
          inner(r, j) = gelu(inner(r, j) + static_cast<double>(b1[static_cast<std::size_t>(j)]));
        }
      }
      x = std::move(inner);
    }
    const Matrix w = head.cast<double>();
    Matrix y = x * w.transpose();
    y.rowwise() += bias.cast<double>();
    Eigen::Map<Floats>{out.data() + at * outputs, count, outputs} = y.cast<float>();
  }
  return out;
}

std::vector<double> explained_variance(const Surrogate& surrogate,
                                       const SurrogateSamples& samples) {
  const std::vector<float> got = surrogate.predict(samples.hidden);
  const auto outputs = static_cast<std::size_t>(samples.outputs);
  const auto n = static_cast<std::size_t>(samples.size());
  std::vector<double> shares;
  for (std::size_t j = 0; j < outputs; ++j) {
    double mean = 0;
    for (std::size_t i = 0; i < n; ++i) mean += samples.scores[i * outputs + j];
    mean /= static_cast<double>(n);
    double off = 0;
    double spread = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double y = samples.scores[i * outputs + j];
      const double e = static_cast<double>(got[i * outputs + j]) - y;
      off += e * e;
      spread += (y - mean) * (y - mean);
    }
    shares.push_back(spread > 0 ? 1.0 - off / spread : 0.0);
  }
  return shares;
}

}  // namespace kvsim
