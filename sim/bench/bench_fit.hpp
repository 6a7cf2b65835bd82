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
  std::string_view metric;  // of ResidualClass: "TTFT", "TPOT", "E2E", "throughput"
  double measured = 0;      // above 0
};
/// A load point: what was measured, and what is simulated of it. `simulate` gives a value for each
/// of `values`; 0 where there is none.
struct BenchLoad {
  std::vector<BenchValue> values;
  std::function<std::vector<double>(const TimeFactors&)> simulate;
};

/// What is believed of a service before its benchmark: the errors of services like it.
struct BenchPrior {
  const ResidualClass* ttft = nullptr;  // not null
  const ResidualClass* tpot = nullptr;
  const ResidualClass* e2e = nullptr;
  const ResidualClass* throughput = nullptr;
};

/// A value before and after, with its 90 % intervals.
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

/// The posterior of a service's times given its benchmark.
///
/// Unknown are the factors of decoding iterations and of those with prompts, the time that is added
/// to a request's way to the engine, and that which a decoding sequence adds to an iteration. Their
/// prior comes from the residual classes: factors are lognormal about the median of TPOT's class,
/// with its spread; the request's time has the spread of TTFT's class at the predicted TTFT of the
/// first load, a sequence's that of TPOT's class at the predicted TPOT over kSequences. Logarithms
/// of measured values have Student-t errors with the spread of repeated runs, times the value's
/// sensitivity where that exceeds 1. The posterior's mode is found by Gauss-Newton steps on
/// simulated derivatives. The errors that are left are those within services of the classes
/// (ResidualClass::within), and the posterior's own. Errors: ContractError if `loads` is empty.
[[nodiscard]] BenchFit fit_bench(const std::vector<BenchLoad>& loads, const BenchPrior& prior,
                                 int threads);

/// The values of a load before and after `calibration`.
[[nodiscard]] std::vector<BenchOutcome> bench_outcomes(const BenchLoad& load,
                                                       const BenchPrior& prior,
                                                       const ServiceCalibration& calibration);

}  // namespace kvsim
