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

/// What was simulated of one run.
struct ServedPrediction {
  std::string failed{};  // empty, or why the simulation gives no metrics: it does not start, …
  std::vector<PredictedMetric> metrics{};
  /// Rate over the highest that the simulated service keeps up with; nullopt: not known.
  std::optional<double> load{};
  std::string interval_basis{};
  std::vector<std::string> residual_path{};  // sim/serve/account/serve_draws.hpp
  [[nodiscard]] const PredictedMetric* find(std::string_view metric, std::string_view stat) const;
};

/// client_metrics of a run whose times differ from the predicted ones. Empty: no request is served.
[[nodiscard]] std::vector<PredictedMetric> simulate_served(const MappedRun& run,
                                                           const TimeFactors& factors);

/// Simulates a run that is expressed: as predicted, and at serve_draws for its intervals. A real
/// engine did start: where the run does not state the memory fraction and the engine would not
/// start with its default, the scenario of `run` is changed to a larger fraction, and to the
/// longest sequence that the pool holds, which is noted. Leaves `load` to the caller. Errors: none
/// that the run's settings cause; those are in `failed`.
[[nodiscard]] ServedPrediction predict_served(MappedRun& run);

/// Runs with equal keys have the same highest rate.
[[nodiscard]] std::string saturation_key(const MappedRun& run);
/// The highest rate of requests a second that one engine of a run keeps up with: that of a closed
/// loop of as many users as it serves at once, in its steady part. 0: no request completed.
[[nodiscard]] double saturation_rate(const MappedRun& run);
/// The share of that rate that a run has; nullopt if it is not known.
[[nodiscard]] std::optional<double> load_of(const MappedRun& run, const ServedPrediction& predicted,
                                            double saturation);

}  // namespace kvsim
