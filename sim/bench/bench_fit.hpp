#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/residuals/residuals.hpp"
#include "models/units/units.hpp"
#include "sim/serve/time_factors.hpp"

namespace kvsim {

/// A measured value of a load point.
struct BenchValue {
  std::string_view metric;  // metric of a ResidualClass: "TTFT", "TPOT", "E2E", "throughput"
  double measured = 0;      // above 0
};
/// A load point: its measured values and their simulation. `simulate` returns one value for each of
/// `values`; 0 if there is none.
struct BenchLoad {
  std::vector<BenchValue> values;
  std::function<std::vector<double>(const TimeFactors&)> simulate;
};

/// The prior for a service before its benchmark: the residuals of similar services.
struct BenchPrior {
  const ResidualClass* ttft = nullptr;  // not null
  const ResidualClass* tpot = nullptr;
  const ResidualClass* e2e = nullptr;
  const ResidualClass* throughput = nullptr;
};

/// A value before and after the fit, with its 90 % intervals.
struct BenchOutcome {
  struct Side {
    double predicted = 0, low = 0, high = 0;
  };
  Side before, after;
};

struct BenchFit {
  ServiceCalibration calibration;
  std::vector<std::vector<BenchOutcome>> outcomes;  // [loads][values]
};

/// Computes the posterior of a service's times given its benchmark.
///
/// The unknowns are the time factors of iterations that only decode and of iterations with prompts,
/// the extra time of a request before it reaches the engine, and the extra time of an iteration per
/// decoding sequence. Priors come from the residual classes. Factors are lognormal around the
/// median of TPOT's class, with its spread. The time per request has the spread of TTFT's class at
/// the predicted TTFT of the first load; the time per sequence has that of TPOT's class at the
/// predicted TPOT over kSequences. Logarithms of measured values have Student-t errors with the
/// spread of repeated runs, times the value's sensitivity if that exceeds 1. Gauss-Newton steps on
/// simulated derivatives find the posterior's mode. The remaining errors are those within services
/// of the classes (ResidualClass::within) and the posterior's own. Errors: ContractError if `loads`
/// is empty.
[[nodiscard]] BenchFit fit_bench(const std::vector<BenchLoad>& loads, const BenchPrior& prior,
                                 int threads);

/// Returns the values of a load before and after `calibration`.
[[nodiscard]] std::vector<BenchOutcome> bench_outcomes(const BenchLoad& load,
                                                       const BenchPrior& prior,
                                                       const ServiceCalibration& calibration);

}  // namespace kvsim
