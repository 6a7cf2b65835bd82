#pragma once

// Internal to sim/plan: lower bounds for every run of a service on a layout.

#include <optional>

#include "sim/plan/candidate.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {

/// Lower bounds for all runs of the workload that meet the plan's bounds.
struct LayoutBound {
  double copies = 1;     // of the service; infinite if its engines are too slow for the bounds
  double gpus = 1;       // of all copies
  double copy_cost = 0;  // per million tokens and copy
  double ttft_s = 0, tpot_s = 0, latency_s = 0;  // as in OperatingPoint
};

/// Computes bounds from the data sheet (its peak FLOP/s, and weights read at its bandwidth) and, if
/// known, from the minimum times of the engine's iterations. Iterations that decode d sequences
/// take T(d) or more. Requests that meet a TPOT of b see iterations of at most b on average. Their
/// tokens therefore take the engine at least the lower convex hull of the points (T(d), T(d) / d)
/// at b. Their total must fit between the first arrival and the last end.
[[nodiscard]] LayoutBound layout_bound(const CandidateInput& in,
                                       const std::optional<MinTimes>& engine_times);

}  // namespace kvsim
