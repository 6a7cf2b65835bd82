#include "models/math/attention/surrogate.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include <Eigen/Dense>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Row = Eigen::Matrix<double, 1, Eigen::Dynamic>;

double gelu_slope(double x) {
  const double density = std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
  return 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2)) + x * density;
}

Matrix inputs_of(const SurrogateSamples& s) {
  return Eigen::Map<const Floats>{s.hidden.data(), s.size(), s.inputs}.cast<double>();
}
Matrix scores_of(const SurrogateSamples& s) {
  return Eigen::Map<const Matrix>{s.scores.data(), s.size(), s.outputs};
}

void check(const SurrogateSamples& train, const SurrogateSamples& validation) {
  for (const SurrogateSamples* s : {&train, &validation}) {
    KVSIM_CHECK(s->inputs >= 1 && s->outputs >= 1 && s->size() >= 1 &&
                    std::ssize(s->hidden) == s->size() * s->inputs &&
                    std::ssize(s->scores) == s->size() * s->outputs && s->inputs == train.inputs &&
                    s->outputs == train.outputs,
                "{} numbers and {} scores of {} inputs and {} outputs", s->hidden.size(),
                s->scores.size(), s->inputs, s->outputs);
  }
}

std::vector<float> to_floats(const Matrix& m) {
  std::vector<float> all;
  all.reserve(static_cast<std::size_t>(m.size()));
  for (Eigen::Index i = 0; i < m.size(); ++i) all.push_back(static_cast<float>(m.data()[i]));
  return all;
}

/// Centred normal equations, factored once for every penalty.
class Ridge {
 public:
  Ridge(const Matrix& x, const Matrix& y)
      : x_mean_{x.colwise().mean()}, y_mean_{y.colwise().mean()} {
    const Matrix xc = x.rowwise() - x_mean_;
    const Matrix yc = y.rowwise() - y_mean_;
    const Eigen::MatrixXd gram = xc.transpose() * xc;
    scale_ = std::max(gram.trace() / static_cast<double>(gram.rows()),
                      std::numeric_limits<double>::min());
    solver_.compute(gram);
    turned_ = solver_.eigenvectors().transpose() * (xc.transpose() * yc);
  }
  /// lambda in units of the mean of the Gram matrix' diagonal.
  [[nodiscard]] Surrogate solve(double lambda) const {
    Eigen::MatrixXd scaled = turned_;
    for (Eigen::Index i = 0; i < scaled.rows(); ++i) {
      scaled.row(i) /= std::max(solver_.eigenvalues()[i], 0.0) + lambda * scale_;
    }
    const Eigen::MatrixXd w = solver_.eigenvectors() * scaled;  // [inputs, outputs]
    const Matrix wt = w.transpose();
    const Matrix b = y_mean_ - x_mean_ * w;
    Surrogate s;
    s.inputs = static_cast<std::int32_t>(w.rows());
    s.outputs = static_cast<std::int32_t>(w.cols());
    s.w2 = to_floats(wt);
    s.b2 = to_floats(b);
    return s;
  }

 private:
  Row x_mean_, y_mean_;
  double scale_ = 0;
  Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver_;
  Eigen::MatrixXd turned_;
};

double squared_error(const Surrogate& surrogate, const SurrogateSamples& samples) {
  const std::vector<float> got = surrogate.predict(samples.hidden);
  double sum = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double off = static_cast<double>(got[i]) - samples.scores[i];
    sum += off * off;
  }
  return sum;
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
  constexpr std::int64_t kBlock = 256;  // the inner layer of all tokens need not stand at once
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

SurrogateFit fit_ridge(const SurrogateSamples& train, const SurrogateSamples& validation) {
  check(train, validation);
  const Ridge ridge{inputs_of(train), scores_of(train)};
  SurrogateFit fit;
  double best = std::numeric_limits<double>::infinity();
  for (int power = -4; power <= 4; ++power) {
    const double lambda = std::pow(10.0, power);
    const double error = squared_error(ridge.solve(lambda), validation);
    if (error < best) {
      best = error;
      fit.lambda = lambda;
    }
  }
  SurrogateSamples both = train;
  both.hidden.insert(both.hidden.end(), validation.hidden.begin(), validation.hidden.end());
  both.scores.insert(both.scores.end(), validation.scores.begin(), validation.scores.end());
  fit.surrogate = Ridge{inputs_of(both), scores_of(both)}.solve(fit.lambda);
  return fit;
}

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
    // Scores back in their own units.
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
