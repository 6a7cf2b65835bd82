#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/bench/bench_fit.hpp"
#include "validation/served/served_score.hpp"

namespace kvsim {

/// A measured value of a service at a load outside its calibration.
struct UnseenValue {
  std::size_t run = 0;  // of ServedScore::runs
  std::string metric;   // of ResidualClass
  double measured = 0;
  BenchOutcome of{};  // before and after
};

/// Predicts load points of a service from two others, as `kvsim calibrate --from-bench` does: each
/// service with three or more loads is calibrated with its lowest and its middle load, and the
/// others are predicted. A service consists of the runs of one source with equal saturation_key.
[[nodiscard]] std::vector<UnseenValue> predict_from_two_loads(const ServedScore& score,
                                                              int threads);

}  // namespace kvsim
