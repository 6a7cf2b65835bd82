#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/residuals/residuals.hpp"
#include "sim/metrics/metric.hpp"
#include "sim/serve/account/mean_iteration.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// The 90 % interval of a service's iteration times, as factors of the predicted ones: faster <= 1
/// <= slower.
struct TimeEnds {
  double faster = 1, slower = 1;
  std::string basis;
};
/// Factors of the mean iteration's kernels, no narrower than the errors of published runs on such
/// stacks (time_residual). nullopt if no error of times is known: a stack that is a bound, a
/// calibration without kernels, an engine without a mean iteration.
[[nodiscard]] std::optional<TimeEnds> time_ends(const ServeSpec& spec,
                                                const std::optional<MeanIteration>& iteration);

/// Whether requests of a run wait for longer than they are prefilled.
[[nodiscard]] bool is_queued(const ServeResult& result);
/// The errors of `metric` ("ttft", "throughput") in measured services like this one; null if there
/// are none, or the service runs a method.
[[nodiscard]] const ResidualClass* residual_of(const ServeSpec& spec, const ServeResult& result,
                                               std::string_view metric);

/// The range of a service's metrics in 90 % of cases. It is simulated again with all iteration
/// times multiplied by `faster` and `slower`: one error is taken for all iterations, because they
/// run the same kernels on the same host. Each metric's ends are its least and its largest of the
/// three runs, widened to the errors of that metric in measured services (residual_of), which
/// include what does not scale with iterations. Left out: how far the capacity of the cache may be
/// from what is predicted, and the workload's own chance.
struct ServeIntervals {
  /// One per service metric; null of those that do not vary with times.
  std::vector<MetricValue> low, high;
  double faster = 1, slower = 1;  // times a predicted time
  std::string basis;

  /// Errors: ContractError if no service metric has that key.
  [[nodiscard]] MetricEnds ends(std::string_view key) const;
};

/// The factors are those of time_ends; nullopt where there are none. The service's two other runs
/// go on up to `threads` threads (0: the machine's).
[[nodiscard]] std::optional<ServeIntervals> serve_intervals(
    const ServeSpec& spec, const ServeResult& result, const std::optional<MeanIteration>& iteration,
    int threads = 1);

}  // namespace kvsim
