#include "validation/measured/fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include <Eigen/Dense>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

using Eigen::MatrixXd;
using Eigen::VectorXd;

/// Coefficients as fit parameters: logarithms for positive coefficients.
class Parameters {
 public:
  explicit Parameters(const KernelForm& form) : form_{form} {}
  [[nodiscard]] VectorXd inner(std::span<const double> outer) const {
    VectorXd x(static_cast<Eigen::Index>(outer.size()));
    for (std::size_t i = 0; i < outer.size(); ++i) {
      const Coefficient& c = form_.coefficients[i];
      const double value = std::clamp(outer[i], c.low, c.high);
      x[static_cast<Eigen::Index>(i)] = c.low > 0 ? std::log(value) : value;
    }
    return x;
  }
  [[nodiscard]] std::vector<double> outer(const VectorXd& x) const {
    std::vector<double> out(static_cast<std::size_t>(x.size()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const Coefficient& c = form_.coefficients[i];
      const double value = x[static_cast<Eigen::Index>(i)];
      out[i] = std::clamp(c.low > 0 ? std::exp(value) : value, c.low, c.high);
    }
    return out;
  }
  /// Step size in coefficient i for numerical derivatives.
  [[nodiscard]] double step(std::size_t i) const {
    const Coefficient& c = form_.coefficients[i];
    return c.low > 0 ? 1e-4 : 1e-4 * (c.high - c.low);
  }
  void clamp(VectorXd& x) const {
    for (std::size_t i = 0; i < form_.coefficients.size(); ++i) {
      const Coefficient& c = form_.coefficients[i];
      double& value = x[static_cast<Eigen::Index>(i)];
      value = c.low > 0 ? std::clamp(value, std::log(c.low), std::log(c.high))
                        : std::clamp(value, c.low, c.high);
    }
  }

 private:
  const KernelForm& form_;
};

class Problem {
 public:
  Problem(const KernelForm& form, std::span<const MeasuredRow* const> rows)
      : form_{form}, rows_{rows} {
    for (const MeasuredRow* row : rows) gpus_.push_back(kernel_gpu(*row->gpu));
  }
  [[nodiscard]] VectorXd residuals(std::span<const double> c) const {
    VectorXd r(static_cast<Eigen::Index>(rows_.size()));
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const MeasuredRow& row = *rows_[i];
      const double us = form_.microseconds(row.call, row.format, gpus_[i], c.data());
      KVSIM_CHECK(us > 0 && std::isfinite(us), "{} gives {} µs", form_.id, us);
      r[static_cast<Eigen::Index>(i)] = std::log(us / row.us);
    }
    return r;
  }
  [[nodiscard]] std::size_t size() const { return rows_.size(); }

 private:
  const KernelForm& form_;
  std::span<const MeasuredRow* const> rows_;
  std::vector<KernelGpu> gpus_;
};

/// Number of rows that determine a coefficient's value and the algorithm.
constexpr std::size_t kRowsPerCoefficient = 10;

VectorXd weights_of(const VectorXd& residuals, double soft) {
  return residuals.unaryExpr([soft](double r) { return 1.0 / std::sqrt(r * r + soft * soft); });
}

/// Descends from one start to the nearest minimum. `home` is the centre of the prior.
FitResult descend(const KernelForm& form, const Problem& problem, std::span<const double> home,
                  std::span<const double> start, const FitOptions& options) {
  const Parameters parameters{form};
  const auto n = static_cast<Eigen::Index>(form.coefficients.size());
  const VectorXd origin = parameters.inner(home);
  VectorXd x = parameters.inner(start);
  VectorXd r = problem.residuals(parameters.outer(x));
  // With few rows the prior keeps the weight that it has with enough rows.
  const double prior = options.prior * static_cast<double>(std::max(
                                           problem.size(), kRowsPerCoefficient * start.size()));
  double lambda = 1e-3;
  for (int round = 0; round < options.rounds; ++round) {
    const VectorXd w = weights_of(r, options.soft);
    const auto cost = [&](const VectorXd& residuals, const VectorXd& at) {
      return (w.array() * residuals.array().square()).sum() + prior * (at - origin).squaredNorm();
    };
    double now = cost(r, x);
    for (int it = 0; it < options.iterations; ++it) {
      MatrixXd jacobian(r.size(), n);
      for (Eigen::Index j = 0; j < n; ++j) {
        const double h = parameters.step(static_cast<std::size_t>(j));
        VectorXd up = x, down = x;
        up[j] += h;
        down[j] -= h;
        parameters.clamp(up);
        parameters.clamp(down);
        const double width = up[j] - down[j];
        if (width <= 0) {
          jacobian.col(j).setZero();
          continue;
        }
        jacobian.col(j) =
            (problem.residuals(parameters.outer(up)) - problem.residuals(parameters.outer(down))) /
            width;
      }
      const MatrixXd weighted = w.asDiagonal() * jacobian;
      MatrixXd normal = jacobian.transpose() * weighted;
      normal.diagonal().array() += prior;
      const VectorXd gradient = weighted.transpose() * r + prior * (x - origin);
      bool moved = false;
      for (int attempt = 0; attempt < 12; ++attempt) {
        MatrixXd damped = normal;
        damped.diagonal() += lambda * normal.diagonal().cwiseMax(1e-9);
        VectorXd next = x - damped.ldlt().solve(gradient);
        parameters.clamp(next);
        const VectorXd there = problem.residuals(parameters.outer(next));
        const double then = cost(there, next);
        if (then < now) {
          moved = now - then > 1e-7 * now;
          x = next;
          r = there;
          now = then;
          lambda = std::max(1e-9, lambda / 5);
          break;
        }
        lambda = std::min(1e9, lambda * 4);
      }
      if (!moved) break;
    }
    lambda = 1e-3;
  }
  return {.coefficients = parameters.outer(x),
          .mean_absolute = r.cwiseAbs().mean(),
          .home = {home.begin(), home.end()}};
}

/// Moves single coefficients far if this lowers the error. A coefficient hidden by a maximum, such
/// as a latency shorter than its transfer, has no slope to follow.
bool leap(const KernelForm& form, const Problem& problem, FitResult& fit) {
  constexpr std::array<double, 4> kFactors{0.2, 0.5, 2, 5};
  constexpr double kGain = 1e-4;  // minimum gain, relative to the mean absolute error
  bool moved = false;
  for (std::size_t i = 0; i < form.coefficients.size(); ++i) {
    const Coefficient& c = form.coefficients[i];
    if (c.low <= 0) continue;
    const double here = fit.coefficients[i];
    double best = here;
    for (const double factor : kFactors) {
      std::vector<double> other = fit.coefficients;
      other[i] = std::clamp(here * factor, c.low, c.high);
      const double error = problem.residuals(other).cwiseAbs().mean();
      if (error >= fit.mean_absolute - kGain) continue;
      fit.mean_absolute = error;
      best = other[i];
    }
    if (best == here) continue;
    fit.coefficients[i] = best;
    moved = true;
  }
  return moved;
}

}  // namespace

FitResult fit_form(const KernelForm& form, std::span<const MeasuredRow* const> rows,
                   std::span<const std::vector<double>> starts, const FitOptions& options) {
  KVSIM_CHECK(!rows.empty(), "a fit of {} without rows", form.id);
  const Problem problem{form, rows};
  std::vector<double> own;
  for (const Coefficient& c : form.coefficients) own.push_back(c.start);
  constexpr int kLeaps = 3;
  const auto from = [&](std::span<const double> home, std::span<const double> start) {
    FitResult found = descend(form, problem, home, start, options);
    for (int i = 0; i < kLeaps; ++i) {
      FitResult next = found;
      if (!leap(form, problem, next)) break;
      next = descend(form, problem, home, next.coefficients, options);
      if (next.mean_absolute >= found.mean_absolute) break;
      found = std::move(next);
    }
    return found;
  };
  FitResult best = from(own, own);
  KVSIM_CHECK(form.starts.size() % own.size() == 0, "starts of {} are not whole", form.id);
  const bool many =
      static_cast<double>(rows.size()) >= form.rows_per_start * static_cast<double>(own.size());
  for (std::size_t i = 0; many && i < form.starts.size(); i += own.size()) {
    const auto start = form.starts.subspan(i, own.size());
    FitResult other = from(start, start);
    if (other.mean_absolute < best.mean_absolute) best = std::move(other);
  }
  for (const std::vector<double>& start : starts) {
    FitResult other = from(own, start);
    if (other.mean_absolute < best.mean_absolute) best = std::move(other);
  }
  return best;
}

FitResult refit_form(const KernelForm& form, std::span<const MeasuredRow* const> rows,
                     const FitResult& near, const FitOptions& options) {
  KVSIM_CHECK(!rows.empty(), "a fit of {} without rows", form.id);
  return descend(form, Problem{form, rows}, near.home, near.coefficients, options);
}

}  // namespace kvsim
