#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "sim/bench/bench_fit.hpp"
#include "validation/served/served_score.hpp"

namespace kvsim {

/// A measured value of a service at a load that its calibration has not seen.
struct UnseenValue {
  std::size_t run = 0;  // of ServedScore::runs
  std::string metric;   // of ResidualClass
  double measured = 0;
  BenchOutcome of{};  // before and after
};

/// What two load points of a service say of its others, as `kvsim calibrate --from-bench` uses
/// them: each service with three loads or more is calibrated by its lowest and its middle load, and
/// the others are predicted. Times of one service are those of runs of one source with equal
/// saturation_key.
[[nodiscard]] std::vector<UnseenValue> predict_from_two_loads(const ServedScore& score,
                                                              int threads);

}  // namespace kvsim
