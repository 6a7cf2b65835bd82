// Times of a service derived from a benchmark: known times are recovered.

#include <cmath>
#include <vector>

#include "sim/bench/bench_fit.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

ResidualClass of(const char* metric, double spread) {
  ResidualClass out{.metric = metric, .path = {"made up"}, .quantiles = {}, .floor = 0.1};
  constexpr std::array kDeviates{-1.96, -1.645, -1.2816, -0.6745, 0.0, 0.6745, 1.2816, 1.645, 1.96};
  for (std::size_t i = 0; i < kDeviates.size(); ++i) out.quantiles[i] = spread * kDeviates[i];
  out.documents = 5;
  out.rows = 50;
  return out;
}
const ResidualClass kTtft = of("TTFT", 0.4), kTpot = of("TPOT", 0.2), kE2e = of("E2E", 0.2),
                    kRate = of("throughput", 0.2);
const BenchPrior kPrior{&kTtft, &kTpot, &kE2e, &kRate};

/// A service without a queue: TTFT is the prompt plus the front end, TPOT is a step of `batch`.
std::vector<double> service(double batch, const TimeFactors& f) {
  const double ttft = 0.05 * f.prefill + 0.01 * f.front_end + f.request.count();
  const double tpot = (0.008 + 1e-5 * batch) * f.decode + batch * f.sequence.count();
  return {ttft, tpot, ttft + 100 * tpot};
}
BenchLoad load(double batch, const TimeFactors& real, double off = 1) {
  const std::vector<double> measured = service(batch, real);
  return {.values = {{"TTFT", measured[0] * off}, {"TPOT", measured[1]}, {"E2E", measured[2]}},
          .simulate = [batch](const TimeFactors& f) { return service(batch, f); }};
}

TEST_CASE("two loads of a service with different times predict a third load") {
  const TimeFactors real{.decode = 1.25,
                         .prefill = 1.1,
                         .front_end = 1,
                         .request = Seconds{0.015},
                         .sequence = Seconds{1e-5}};
  const BenchFit fit = fit_bench({load(1, real), load(64, real)}, kPrior, 1);
  const auto third = bench_outcomes(load(32, real), kPrior, fit.calibration);
  const std::vector<double> measured = service(32, real);
  for (std::size_t i = 0; i < third.size(); ++i) {
    const double before = std::abs(std::log(third[i].before.predicted / measured[i]));
    const double after = std::abs(std::log(third[i].after.predicted / measured[i]));
    CHECK(after < 0.3 * before);
    CHECK(after < 0.05);
    CHECK(third[i].after.low <= measured[i]);
    CHECK(measured[i] <= third[i].after.high);
    CHECK(third[i].after.high / third[i].after.low < third[i].before.high / third[i].before.low);
  }
  CHECK(fit.calibration.runs == 2);
}

TEST_CASE("a service that matches its prediction keeps it, with narrower intervals") {
  const BenchFit fit = fit_bench({load(1, {}), load(64, {})}, kPrior, 1);
  CHECK(fit.calibration.times.decode == test::rel(1, 0.01));
  CHECK(fit.calibration.times.prefill == test::rel(1, 0.05));
  CHECK(fit.calibration.tpot_error < 0.1);
  for (const auto& outcomes : fit.outcomes) {
    for (const BenchOutcome& one : outcomes) {
      CHECK(one.after.high / one.after.low < one.before.high / one.before.low);
    }
  }
}

TEST_CASE("a posterior and not a free fit: it stays near the prior of such services") {
  // Ten times slower than predicted, while such services are within a factor of 1.4.
  const TimeFactors real = TimeFactors::all(10);
  const BenchFit fit = fit_bench({load(1, real)}, kPrior, 1);
  CHECK(fit.calibration.times.decode > 1.2);
  CHECK(fit.calibration.times.decode < 10);
}

TEST_CASE("a value that is far off weighs less than one that fits") {
  const TimeFactors real = TimeFactors::all(1.2);
  const BenchFit fit = fit_bench({load(1, real), load(16, real, 6), load(64, real)}, kPrior, 1);
  const auto other = bench_outcomes(load(32, real), kPrior, fit.calibration);
  CHECK(other[0].after.predicted == test::rel(service(32, real)[0], 0.25));
  CHECK(other[1].after.predicted == test::rel(service(32, real)[1], 0.03));
}

TEST_CASE("a metric without a prediction is ignored") {
  BenchLoad none = load(1, TimeFactors::all(1.2));
  none.simulate = [](const TimeFactors& f) {
    std::vector<double> out = service(1, f);
    out[2] = 0;
    return out;
  };
  const BenchFit fit = fit_bench({none}, kPrior, 1);
  CHECK(fit.outcomes[0][2].after.predicted == 0);
  CHECK(fit.calibration.times.decode > 1.1);
}

}  // namespace
}  // namespace kvsim
