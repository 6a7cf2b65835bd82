#pragma once

#include "sim/metrics/metric.hpp"
#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// Metrics of a candidate, in the order of documents. docs/results.md lists them.
[[nodiscard]] MetricTable<PlanCandidate> candidate_metrics();
/// Metrics of a way to run.
[[nodiscard]] MetricTable<OperatingPoint> operating_point_metrics();

}  // namespace kvsim
