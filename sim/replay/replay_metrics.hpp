#pragma once

#include <optional>

#include "sim/metrics/metric.hpp"
#include "sim/replay/replay.hpp"

namespace kvsim {

/// The distance of a method from `oracle-step` at the same requested budget.
struct OracleGap {
  std::optional<double> mass;         // the oracle's retained mass minus the method's
  std::optional<double> error_ratio;  // the method's mean error divided by the oracle's
};
/// Returns an empty gap if the oracle did not run at that budget. A number that one of the two does
/// not have is absent (merges retain no mass; an oracle without error has no ratio).
[[nodiscard]] OracleGap oracle_gap(const ReplayResult& replay, const ReplayMethod& method);

/// A method for which metrics are computed.
struct ReplayedMethod {
  const ReplayResult& replay;
  const ReplayMethod& method;
};

/// Returns the metrics in the order of documents. docs/results.md lists them.
[[nodiscard]] MetricTable<ReplayedMethod> replay_metrics();
[[nodiscard]] MetricTable<ReplayStep> replay_step_metrics();
[[nodiscard]] MetricTable<ReplayCell> replay_cell_metrics();
[[nodiscard]] MetricTable<ReplayPaged> replay_paged_metrics();

}  // namespace kvsim
