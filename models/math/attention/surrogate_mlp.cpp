#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <numeric>

#include "models/math/attention/surrogate_fits.hpp"

namespace kvsim {
namespace {

using namespace surrogate_fits;

double gelu_slope(double x) {
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
  return 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2)) + x * density;
}

/// SplitMix64 (Steele et al. 2014): the n-th number of a stream is a hash of (seed, n).
std::uint64_t hash(std::uint64_t seed, std::uint64_t n) {
  std::uint64_t z = seed + (n + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27U)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31U);
}

/// One parameter with Adam's two moments.
struct Weight {
  Matrix value, gradient, first, second;
  explicit Weight(Eigen::Index rows, Eigen::Index columns) {
    value = gradient = first = second = Matrix::Zero(rows, columns);
  }
  void fill(double bound, std::uint64_t seed) {
    for (Eigen::Index i = 0; i < value.size(); ++i) {
      const double u =
          static_cast<double>(hash(seed, static_cast<std::uint64_t>(i)) >> 11U) * 0x1p-53;
      value.data()[i] = bound * (2.0 * u - 1.0);
    }
  }
  void step(double rate, std::int64_t t) {
    constexpr double kFirst = 0.9;
    constexpr double kSecond = 0.999;
    first = kFirst * first + (1 - kFirst) * gradient;
    second = kSecond * second + (1 - kSecond) * gradient.cwiseProduct(gradient);
    const double c1 = 1.0 / (1.0 - std::pow(kFirst, static_cast<double>(t)));
    const double c2 = 1.0 / (1.0 - std::pow(kSecond, static_cast<double>(t)));
    value.array() -= rate * (first.array() * c1) / ((second.array() * c2).sqrt() + 1e-8);
  }
};

}  // namespace

SurrogateFit fit_mlp(const SurrogateSamples& train, const SurrogateSamples& validation,
                     const MlpOptions& options) {
  check(train, validation);
  KVSIM_CHECK(options.epochs >= 1 && options.batch >= 1, "{} epochs of batches of {}",
              options.epochs, options.batch);
  const Matrix x = inputs_of(train);
  Matrix y = scores_of(train);
  const Row mean = y.colwise().mean();
  y.rowwise() -= mean;
  Row spread = (y.array().square().colwise().mean()).sqrt();
  for (Eigen::Index j = 0; j < spread.size(); ++j) {
    if (!(spread[j] > 0)) spread[j] = 1.0;
  }
  for (Eigen::Index i = 0; i < y.rows(); ++i) y.row(i) = y.row(i).cwiseQuotient(spread);

  const Eigen::Index width = options.width > 0 ? options.width : std::max(train.inputs / 8, 1);
  Weight w1{width, train.inputs}, b1{1, width}, w2{train.outputs, width}, b2{1, train.outputs};
  w1.fill(1.0 / std::sqrt(static_cast<double>(train.inputs)), hash(options.seed, 1));
  w2.fill(1.0 / std::sqrt(static_cast<double>(width)), hash(options.seed, 2));
  std::vector<Eigen::Index> order(static_cast<std::size_t>(x.rows()));
  std::iota(order.begin(), order.end(), 0);
  SurrogateFit fit;
  double best = std::numeric_limits<double>::infinity();
  std::int64_t steps = 0;
  std::uint64_t draws = 0;
  for (std::int32_t epoch = 1; epoch <= options.epochs; ++epoch) {
    for (std::size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[hash(options.seed + 3, draws++) % i]);
    }
    for (std::size_t from = 0; from < order.size();
         from += static_cast<std::size_t>(options.batch)) {
      const auto n = static_cast<Eigen::Index>(
          std::min(order.size() - from, static_cast<std::size_t>(options.batch)));
      Matrix bx{n, x.cols()}, by{n, y.cols()};
      for (Eigen::Index i = 0; i < n; ++i) {
        bx.row(i) = x.row(order[from + static_cast<std::size_t>(i)]);
        by.row(i) = y.row(order[from + static_cast<std::size_t>(i)]);
      }
      Matrix before = bx * w1.value.transpose();
      before.rowwise() += b1.value.row(0);
      const Matrix inner = before.unaryExpr(&gelu);
      Matrix off = inner * w2.value.transpose();
      off.rowwise() += b2.value.row(0);
      off = (off - by) * (2.0 / static_cast<double>(n));
      w2.gradient = off.transpose() * inner;
      b2.gradient = off.colwise().sum();
      const Matrix back = (off * w2.value).cwiseProduct(before.unaryExpr(&gelu_slope));
      w1.gradient = back.transpose() * bx;
      b1.gradient = back.colwise().sum();
      ++steps;
      for (Weight* each : {&w1, &b1, &w2, &b2}) each->step(options.learning_rate, steps);
    }
    // Convert the scores back to their original units.
    const Matrix out_w = spread.transpose().asDiagonal() * w2.value;
    const Matrix out_b = b2.value.cwiseProduct(spread) + mean;
    const Surrogate now{.inputs = train.inputs,
                        .outputs = train.outputs,
                        .width = static_cast<std::int32_t>(width),
                        .w1 = to_floats(w1.value),
                        .b1 = to_floats(b1.value),
                        .w2 = to_floats(out_w),
                        .b2 = to_floats(out_b)};
    const double error = squared_error(now, validation);
    if (error < best) {
      best = error;
      fit.surrogate = now;
      fit.epochs = epoch;
    }
  }
  KVSIM_CHECK(fit.epochs > 0, "training diverged at a learning rate of {}", options.learning_rate);
  return fit;
}

}  // namespace kvsim
