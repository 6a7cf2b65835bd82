#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/serve/serve_result.hpp"
#include "sim/serve/time_factors.hpp"
#include "validation/served/served_mapping.hpp"
#include "validation/served/served_metrics.hpp"
#include "validation/served/served_runs.hpp"

namespace kvsim {

/// The simulation of one run.
struct ServedPrediction {
  std::string failed{};  // empty, or why the simulation has no metrics: it does not start, …
  std::vector<PredictedMetric> metrics{};
  /// Rate over the highest sustainable rate of the simulated service; nullopt: unknown.
  std::optional<double> load{};
  std::string interval_basis{};
  std::vector<std::string> residual_path{};  // sim/serve/account/serve_draws.hpp
  [[nodiscard]] const PredictedMetric* find(std::string_view metric, std::string_view stat) const;
};

/// Returns client_metrics of a run with times scaled by `factors`; empty if no request is served.
[[nodiscard]] std::vector<PredictedMetric> simulate_served(const MappedRun& run,
                                                           const TimeFactors& factors);

/// Simulates an expressed run: as predicted, and at serve_draws for its intervals. The real engine
/// did start: if the run does not state the memory fraction and the engine would not start with the
/// default, the scenario of `run` is changed to a larger fraction and to the longest sequence that
/// fits in the pool, which is noted. `load` is set by the caller. Failures caused by the run's
/// settings are reported in `failed`, not thrown.
[[nodiscard]] ServedPrediction predict_served(MappedRun& run);

/// Runs with equal keys have the same highest rate.
[[nodiscard]] std::string saturation_key(const MappedRun& run);
/// Returns the highest sustainable rate of one engine of a run, in requests per second: the steady
/// rate of a closed loop with the maximum number of simultaneous users. 0 if no request completed.
[[nodiscard]] double saturation_rate(const MappedRun& run);
/// Returns a run's rate as a share of that rate; nullopt if unknown.
[[nodiscard]] std::optional<double> load_of(const MappedRun& run, const ServedPrediction& predicted,
                                            double saturation);

}  // namespace kvsim
