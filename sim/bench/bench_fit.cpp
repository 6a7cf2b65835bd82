#include "sim/bench/bench_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>

#include <Eigen/Dense>

#include "models/units/check.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/serve/account/serve_draws.hpp"
#include "sim/serve/account/serve_intervals.hpp"

namespace kvsim {
namespace {

constexpr Eigen::Index kUnknowns = 4;  // decode, prefill, request, sequence
using Unknowns = Eigen::Matrix<double, kUnknowns, 1>;
using Square = Eigen::Matrix<double, kUnknowns, kUnknowns>;

/// Standard deviations of logarithms between repeats of the same run. NVIDIA's repeats of NIM runs:
/// 0.4 % in throughput and 1.7 % in TPOT; TTFT in other sources: 2 to 12 %.
double repeat_noise(std::string_view metric) {
  constexpr double kTtft = 0.05, kThroughput = 0.01, kTime = 0.02;
  return metric == "TTFT" ? kTtft : metric == "throughput" ? kThroughput : kTime;
}
constexpr double kTails = 4;       // degrees of freedom of the errors' Student-t
constexpr double kSequences = 64;  // of a batch; a sequence's share may explain its step time
constexpr double kDeviates = 3.28970725390294;  // standard deviations of a normal from 5 % to 95 %

double spread(const ResidualClass& of) {
  return (of.quantile(0.95) - of.quantile(0.05)) / kDeviates * std::hypot(1, of.floor);
}

const ResidualClass* class_of(const BenchPrior& prior, std::string_view metric) {
  return metric == "TTFT"   ? prior.ttft
         : metric == "TPOT" ? prior.tpot
         : metric == "E2E"  ? prior.e2e
                            : prior.throughput;
}

/// Predicted values of all loads, one after another; 0 if there is none.
using Values = std::vector<double>;

class Posterior {
 public:
  Posterior(const std::vector<BenchLoad>& loads, const BenchPrior& prior, int threads)
      : loads_{loads}, threads_{threads} {
    for (const BenchLoad& load : loads) {
      for (const BenchValue& value : load.values) values_.push_back(value);
    }
    start_ = predict({TimeFactors{}}).front();
    double ttft = std::numeric_limits<double>::infinity();
    double tpot = ttft;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (start_[i] <= 0) continue;
      if (values_[i].metric == "TTFT") ttft = std::min(ttft, start_[i]);
      if (values_[i].metric == "TPOT") tpot = std::min(tpot, start_[i]);
    }
    step_median_ = std::log(prior.tpot->factor(0.5));
    step_spread_ = spread(*prior.tpot);
    request_spread_ = std::isfinite(ttft) ? ttft * std::expm1(spread(*prior.ttft)) : 0;
    sequence_spread_ = std::isfinite(tpot) ? tpot * std::expm1(step_spread_) / kSequences : 0;
    find();
  }

  [[nodiscard]] const Values& start() const { return start_; }
  [[nodiscard]] const Values& end() const { return end_; }
  [[nodiscard]] TimeFactors times() const { return times_of(at_); }
  [[nodiscard]] const std::vector<BenchValue>& values() const { return values_; }
  /// Derivative of the value's logarithm with respect to that of all times, before the fit.
  [[nodiscard]] double slope(std::size_t i) const {
    std::array<double, kServeDraws> drawn{};
    for (std::size_t d = 0; d < kServeDraws; ++d) drawn[d] = drawn_[d][i];
    return response(start_[i], drawn).value_or(Response::linear(1)).slope();
  }
  /// Returns the posterior's standard deviation of the logarithms of a metric's values, divided by
  /// their slopes; nullopt if the benchmark has no value of it.
  [[nodiscard]] std::optional<double> own_error(std::string_view metric) const {
    const Square covariance = (slopes_.transpose() * slopes_ + Square::Identity()).inverse();
    double sum = 0, n = 0;
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].metric != metric || !used(i)) continue;
      const Unknowns row = jacobian_.row(static_cast<Eigen::Index>(i)).transpose();
      sum += std::sqrt(std::max(0.0, row.dot(covariance * row))) / scale(i);
      n += 1;
    }
    if (n == 0) return std::nullopt;
    return sum / n;
  }

 private:
  [[nodiscard]] bool used(std::size_t i) const {
    return start_[i] > 0 && end_[i] > 0 && values_[i].measured > 0;
  }
  [[nodiscard]] double scale(std::size_t i) const { return std::max(1.0, slope(i)); }

  [[nodiscard]] TimeFactors times_of(const Unknowns& at) const {
    return {.decode = std::exp(step_median_ + step_spread_ * at(0)),
            .prefill = std::exp(step_median_ + step_spread_ * at(1)),
            .front_end = 1,
            .request = Seconds{request_spread_ * at(2)},
            .sequence = Seconds{sequence_spread_ * at(3)}};
  }

  /// Returns the values of all loads for each of `times`.
  [[nodiscard]] std::vector<Values> predict(const std::vector<TimeFactors>& times) const {
    std::vector<std::vector<Values>> parts(times.size(), std::vector<Values>(loads_.size()));
    parallel_for(times.size() * loads_.size(), threads_, [&](std::size_t i) {
      const std::size_t load = i % loads_.size();
      parts[i / loads_.size()][load] = loads_[load].simulate(times[i / loads_.size()]);
    });
    std::vector<Values> out;
    for (const std::vector<Values>& of : parts) {
      Values& all = out.emplace_back();
      for (const Values& values : of) all.insert(all.end(), values.begin(), values.end());
    }
    return out;
  }

  [[nodiscard]] double misfit(std::size_t i, double predicted) const {
    return std::log(values_[i].measured / predicted) / (repeat_noise(values_[i].metric) * scale(i));
  }
  /// Returns the negative logarithm of the posterior.
  [[nodiscard]] double cost(const Unknowns& at, const Values& predicted) const {
    double out = 0.5 * at.squaredNorm();
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (!used(i)) continue;
      if (!(predicted[i] > 0)) return std::numeric_limits<double>::infinity();
      const double r = misfit(i, predicted[i]);
      out += 0.5 * (kTails + 1) * std::log1p(r * r / kTails);
    }
    return out;
  }

  void find() {
    std::vector<TimeFactors> draws(serve_draws().begin(), serve_draws().end());
    drawn_ = predict(draws);
    // At the mode of the prior the factors are equal to its median, not 1.
    end_ = predict({times_of(at_)}).front();
    double lowest = cost(at_, end_);
    double damping = 0;
    constexpr int kSteps = 6;
    for (int step = 0; step < kSteps; ++step) {
      differentiate();
      Square normal = slopes_.transpose() * slopes_ + Square::Identity();
      normal.diagonal() *= 1 + damping;
      const Unknowns gradient = slopes_.transpose() * misfits_ - at_;
      const Unknowns next = at_ + normal.ldlt().solve(gradient);
      const Values there = predict({times_of(next)}).front();
      const double now = cost(next, there);
      constexpr double kSmall = 1e-3;
      if (now < lowest) {
        const bool is_done = lowest - now < kSmall;
        at_ = next;
        end_ = there;
        lowest = now;
        damping *= 0.3;
        if (is_done) break;
      } else {
        damping = std::max(1.0, 4 * damping);
        if (damping > 1e3) break;
      }
    }
    differentiate();
  }

  /// Computes derivatives of the logarithms at `at_`, and the same divided by the weighted noise.
  void differentiate() {
    constexpr double kStep = 0.5;  // in standard deviations
    std::vector<TimeFactors> moved;
    for (Eigen::Index k = 0; k < kUnknowns; ++k) {
      Unknowns there = at_;
      there(k) += kStep;
      moved.push_back(times_of(there));
    }
    const std::vector<Values> values = predict(moved);
    const auto rows = static_cast<Eigen::Index>(values_.size());
    jacobian_ = Eigen::MatrixXd::Zero(rows, kUnknowns);
    slopes_ = jacobian_;
    misfits_ = Eigen::VectorXd::Zero(rows);
    for (Eigen::Index i = 0; i < rows; ++i) {
      const auto at = static_cast<std::size_t>(i);
      if (!used(at)) continue;
      const double r = misfit(at, end_[at]);
      const double weight = std::sqrt((kTails + 1) / (kTails + r * r));
      misfits_(i) = r * weight;
      for (Eigen::Index k = 0; k < kUnknowns; ++k) {
        const double there = values[static_cast<std::size_t>(k)][at];
        if (!(there > 0)) continue;
        jacobian_(i, k) = std::log(there / end_[at]) / kStep;
        slopes_(i, k) = jacobian_(i, k) * weight / (repeat_noise(values_[at].metric) * scale(at));
      }
    }
  }

  const std::vector<BenchLoad>& loads_;
  int threads_;
  std::vector<BenchValue> values_;
  Values start_, end_;
  std::vector<Values> drawn_;
  double step_median_ = 0, step_spread_ = 0, request_spread_ = 0, sequence_spread_ = 0;
  Unknowns at_ = Unknowns::Zero();
  Eigen::MatrixXd jacobian_, slopes_;
  Eigen::VectorXd misfits_;
};

}  // namespace

BenchFit fit_bench(const std::vector<BenchLoad>& loads, const BenchPrior& prior, int threads) {
  KVSIM_CHECK(!loads.empty(), "a benchmark without a load");
  const Posterior posterior{loads, prior, threads};
  BenchFit out;
  ServiceCalibration& calibration = out.calibration;
  calibration.times = posterior.times();
  calibration.runs = std::ssize(loads);
  const auto error = [&](std::string_view metric) {
    const ResidualClass* of = class_of(prior, metric);
    // Combines the residuals of similar services and its own benchmark, weighted by their
    // precisions.
    const double before = (of->quantile(0.95) - of->quantile(0.05)) / kDeviates;
    const auto fitted = posterior.own_error(metric);
    if (!fitted) return before;
    const double own = std::hypot(of->within, *fitted, repeat_noise(metric));
    return before * own / std::hypot(before, own);
  };
  calibration.ttft_error = error("TTFT");
  calibration.tpot_error = error("TPOT");
  calibration.e2e_error = error("E2E");
  calibration.throughput_error = error("throughput");
  for (const BenchLoad& load : loads) {
    out.outcomes.push_back(bench_outcomes(load, prior, calibration));
  }
  return out;
}

std::vector<BenchOutcome> bench_outcomes(const BenchLoad& load, const BenchPrior& prior,
                                         const ServiceCalibration& calibration) {
  const Values before = load.simulate({});
  const Values after = load.simulate(calibration.times);
  std::array<Values, kServeDraws> drawn;
  for (std::size_t d = 0; d < kServeDraws; ++d) drawn[d] = load.simulate(serve_draws()[d]);
  std::vector<BenchOutcome> out;
  for (std::size_t i = 0; i < load.values.size(); ++i) {
    const std::string_view metric = load.values[i].metric;
    const auto value_of = [&](const Values& values) { return i < values.size() ? values[i] : 0; };
    std::array<double, kServeDraws> moved{};
    for (std::size_t d = 0; d < kServeDraws; ++d) moved[d] = value_of(drawn[d]);
    const Response moves = response(value_of(before), moved).value_or(Response::linear(1));
    const ResidualClass& of = *class_of(prior, metric);
    const auto side = [&](const ResidualClass& errors, double predicted) {
      if (!(predicted > 0)) return BenchOutcome::Side{};
      const auto [low, high] = residual_ends(errors, predicted, moves);
      return BenchOutcome::Side{predicted, low, high};
    };
    out.push_back({side(of, value_of(before)),
                   side(calibrated_class(of, error_of(calibration, metric), calibration.runs),
                        value_of(after))});
  }
  return out;
}

}  // namespace kvsim
