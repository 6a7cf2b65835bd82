#include "models/math/low_rank/low_rank_kernel.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

#include <Eigen/Core>

#include "models/math/counter_random.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using ConstMap = Eigen::Map<const Matrix>;
using Map = Eigen::Map<Matrix>;

double gelu(double x) { return 0.5 * x * (1.0 + std::erf(x / std::numbers::sqrt2)); }
double gelu_slope(double x) {
  return 0.5 * (1.0 + std::erf(x / std::numbers::sqrt2)) +
         x * std::exp(-0.5 * x * x) / std::sqrt(2.0 * std::numbers::pi);
}
double sign(double x) { return x > 0 ? 1.0 : x < 0 ? -1.0 : 0.0; }

/// Offset of each parameter, and the parameters as matrices.
struct Layout {
  explicit Layout(const LowRankShape& shape) : d{shape.head_dim}, h{shape.hidden}, r{shape.rank} {}
  Eigen::Index d, h, r;
  [[nodiscard]] Eigen::Index w2() const { return d * h; }
  [[nodiscard]] Eigen::Index w3() const { return w2() + h * r; }
  [[nodiscard]] Eigen::Index w4() const { return w3() + d * h; }
  [[nodiscard]] Eigen::Index mix() const { return w4() + h * r; }
  [[nodiscard]] Eigen::Index s1() const { return mix() + r * r; }
  [[nodiscard]] Eigen::Index s2() const { return s1() + r; }
};

/// gelu(gelu(x A) B) with the intermediate results that its gradient needs.
struct TwoLayers {
  Matrix a, hidden, b, out;
  TwoLayers(const ConstMap& x, const ConstMap& first, const ConstMap& second)
      : a{x * first}, hidden{a.unaryExpr(&gelu)}, b{hidden * second}, out{b.unaryExpr(&gelu)} {}
  void back(const ConstMap& x, const ConstMap& second, const Matrix& d_out, Map d_first,
            Map d_second) const {
    const Matrix d_b = d_out.cwiseProduct(b.unaryExpr(&gelu_slope));
    d_second.noalias() += hidden.transpose() * d_b;
    const Matrix d_hidden = d_b * second.transpose();
    const Matrix d_a = d_hidden.cwiseProduct(a.unaryExpr(&gelu_slope));
    d_first.noalias() += x.transpose() * d_a;
  }
};

struct Keys {
  TwoLayers layers;
  Matrix u, mixed, sum, psi;
  Keys(const ConstMap& keys, const double* p, const Layout& at)
      : layers{keys, ConstMap{p + at.w3(), at.d, at.h}, ConstMap{p + at.w4(), at.h, at.r}} {
    const ConstMap s1{p + at.s1(), 1, at.r};
    const ConstMap s2{p + at.s2(), 1, at.r};
    u = layers.out;
    for (Eigen::Index j = 0; j < at.r; ++j) u.col(j) *= std::abs(s1(0, j));
    mixed = u * ConstMap{p + at.mix(), at.r, at.r};
    sum = u;
    for (Eigen::Index j = 0; j < at.r; ++j) sum.col(j) += mixed.col(j) * s2(0, j);
    psi = sum.cwiseAbs();
  }
};

}  // namespace

LowRankKernel::LowRankKernel(const LowRankShape& shape, std::uint64_t key)
    : shape_{shape}, parameters_(shape.parameters()) {
  KVSIM_CHECK(shape.head_dim >= 1 && shape.hidden >= 1 && shape.rank >= 1, "{} x {} x {}",
              shape.head_dim, shape.hidden, shape.rank);
  constexpr double kSmall = 1e-4;
  const Layout at{shape};
  for (Eigen::Index i = 0; i < at.s2() + at.r; ++i) {
    const bool from_head = i < at.w2() || (i >= at.w3() && i < at.w4());
    const auto fan_in = static_cast<double>(from_head ? at.d : i < at.mix() ? at.h : at.r);
    const double u = counter_uniform(key, static_cast<std::uint64_t>(i));
    parameters_[static_cast<std::size_t>(i)] =
        i >= at.s1() ? kSmall : (2.0 * u - 1.0) * std::sqrt(3.0 / fan_in);
  }
}

std::vector<double> LowRankKernel::phi(std::span<const double> queries) const {
  const Layout at{shape_};
  const double* p = parameters_.data();
  const ConstMap x{queries.data(), static_cast<Eigen::Index>(queries.size()) / at.d, at.d};
  const TwoLayers layers{x, ConstMap{p, at.d, at.h}, ConstMap{p + at.w2(), at.h, at.r}};
  std::vector<double> out(static_cast<std::size_t>(x.rows() * at.r));
  Map{out.data(), x.rows(), at.r} = layers.out.cwiseAbs();
  return out;
}

std::vector<double> LowRankKernel::psi(std::span<const double> keys) const {
  const Layout at{shape_};
  const ConstMap x{keys.data(), static_cast<Eigen::Index>(keys.size()) / at.d, at.d};
  const Keys mapped{x, parameters_.data(), at};
  std::vector<double> out(static_cast<std::size_t>(x.rows() * at.r));
  Map{out.data(), x.rows(), at.r} = mapped.psi;
  return out;
}

double low_rank_loss(const LowRankKernel& kernel, const LowRankTask& task,
                     std::span<double> gradient) {
  const Layout at{kernel.shape()};
  auto copy = kernel;  // parameters() of a const kernel are read-only
  const double* p = copy.parameters().data();
  const auto n = static_cast<Eigen::Index>(task.queries.size()) / at.d;
  const auto m = static_cast<Eigen::Index>(task.keys.size()) / at.d;
  const ConstMap q{task.queries.data(), n, at.d};
  const ConstMap k{task.keys.data(), m, at.d};
  const ConstMap v{task.values.data(), m, at.d};
  const ConstMap visible{task.visible.data(), n, m};
  const ConstMap target{task.target.data(), n, at.d};
  const ConstMap w2{p + at.w2(), at.h, at.r};
  const ConstMap w4{p + at.w4(), at.h, at.r};
  const TwoLayers queries{q, ConstMap{p, at.d, at.h}, w2};
  const Matrix phi = queries.out.cwiseAbs();
  const Keys keys{k, p, at};
  Matrix shown = visible;  // scaled by e^-shift per row
  for (Eigen::Index i = 0; i < n; ++i) {
    shown.row(i) *= std::exp(-task.shift[static_cast<std::size_t>(i)]);
  }
  const Matrix weight = (phi * keys.psi.transpose()).cwiseProduct(shown);
  Matrix out = weight * v + ConstMap{task.kept_out.data(), n, at.d};
  Matrix sum = weight.rowwise().sum() + ConstMap{task.kept_sum.data(), n, 1};
  for (Eigen::Index i = 0; i < n; ++i) out.row(i) /= sum(i, 0);
  const Matrix miss = out - target;
  const double count = static_cast<double>(n * at.d);
  const double loss = miss.squaredNorm() / count;
  if (gradient.empty()) return loss;

  KVSIM_CHECK(gradient.size() == kernel.shape().parameters(), "{} elements of gradient",
              gradient.size());
  std::fill(gradient.begin(), gradient.end(), 0.0);
  double* g = gradient.data();
  Matrix d_out = miss * (2.0 / count);
  for (Eigen::Index i = 0; i < n; ++i) d_out.row(i) /= sum(i, 0);  // gradient by the numerator
  Matrix d_weight = d_out * v.transpose();
  for (Eigen::Index i = 0; i < n; ++i) d_weight.row(i).array() -= d_out.row(i).dot(out.row(i));
  d_weight = d_weight.cwiseProduct(shown);
  const Matrix d_phi = (d_weight * keys.psi).cwiseProduct(queries.out.unaryExpr(&sign));
  queries.back(q, w2, d_phi, Map{g, at.d, at.h}, Map{g + at.w2(), at.h, at.r});
  const Matrix d_sum = (d_weight.transpose() * phi).cwiseProduct(keys.sum.unaryExpr(&sign));
  Matrix d_mixed = d_sum;
  Matrix d_u = d_sum;
  for (Eigen::Index j = 0; j < at.r; ++j) {
    g[at.s2() + j] += d_sum.col(j).dot(keys.mixed.col(j));
    d_mixed.col(j) *= p[at.s2() + j];
  }
  Map{g + at.mix(), at.r, at.r} += keys.u.transpose() * d_mixed;
  d_u += d_mixed * ConstMap{p + at.mix(), at.r, at.r}.transpose();
  Matrix d_features = d_u;
  for (Eigen::Index j = 0; j < at.r; ++j) {
    const double s1 = p[at.s1() + j];
    g[at.s1() + j] += sign(s1) * d_u.col(j).dot(keys.layers.out.col(j));
    d_features.col(j) *= std::abs(s1);
  }
  keys.layers.back(k, w4, d_features, Map{g + at.w3(), at.d, at.h}, Map{g + at.w4(), at.h, at.r});
  return loss;
}

std::pair<double, double> fit_low_rank(LowRankKernel& kernel, const LowRankTask& task,
                                       std::int32_t steps, double rate) {
  constexpr double kFirst = 0.9;
  constexpr double kSecond = 0.999;
  constexpr double kEpsilon = 1e-8;
  const auto parameters = kernel.parameters();
  std::vector<double> gradient(parameters.size());
  std::vector<double> first(parameters.size(), 0.0);
  std::vector<double> second(parameters.size(), 0.0);
  const double before = low_rank_loss(kernel, task, {});
  double best = before;
  std::vector<double> best_parameters(parameters.begin(), parameters.end());
  double first_power = 1;
  double second_power = 1;
  for (std::int32_t step = 0; step < steps; ++step) {
    const double loss = low_rank_loss(kernel, task, gradient);
    if (loss < best) {
      best = loss;
      best_parameters.assign(parameters.begin(), parameters.end());
    }
    first_power *= kFirst;
    second_power *= kSecond;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      first[i] = kFirst * first[i] + (1 - kFirst) * gradient[i];
      second[i] = kSecond * second[i] + (1 - kSecond) * gradient[i] * gradient[i];
      parameters[i] -= rate * (first[i] / (1 - first_power)) /
                       (std::sqrt(second[i] / (1 - second_power)) + kEpsilon);
    }
  }
  if (const double last = low_rank_loss(kernel, task, {}); last < best) return {before, last};
  std::copy(best_parameters.begin(), best_parameters.end(), parameters.begin());
  return {before, best};
}

}  // namespace kvsim
