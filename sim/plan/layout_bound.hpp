#pragma once

// Inside of sim/plan: what every run of a service on a layout takes at least.

#include <optional>

#include "sim/plan/candidate.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {

/// Lower bounds of all runs of the workload that keep the plan's bounds.
struct LayoutBound {
  double copies = 1;     // of the service; infinite: its engines alone are too slow for the bounds
  double gpus = 1;       // of all copies
  double copy_cost = 0;  // of a million tokens, for each copy
  double ttft_s = 0, tpot_s = 0, latency_s = 0;  // of an OperatingPoint
};

/// By the data sheet (operations at its rate, weights read at its bandwidth) and, if they are
/// known, by the least times of the engine's iterations. Iterations that decode d sequences take
/// T(d) or more. Requests that keep a TPOT of b see iterations of at most b on average, so that
/// their tokens take the engine at least the lower convex hull of the points (T(d), T(d) / d) at b.
/// What they take together fits between the first arrival and the last end.
[[nodiscard]] LayoutBound layout_bound(const CandidateInput& in,
                                       const std::optional<MinTimes>& engine_times);

}  // namespace kvsim
