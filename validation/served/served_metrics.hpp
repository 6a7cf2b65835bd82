#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/residuals/residuals.hpp"
#include "sim/serve/serve_result.hpp"
#include "validation/served/served_mapping.hpp"

namespace kvsim {

/// Number of samples of an engine's state if none are needed: the first and the last.
inline constexpr std::size_t kNoSamples = 2;

/// A metric of a simulated run as its client would report it, with its 90 % interval.
struct PredictedMetric {
  std::string metric, stat;
  double value = 0;
  std::optional<double> low{}, high{};
  std::optional<Response> response{};  // to times: sim/serve/account/serve_draws.hpp
};

/// Metrics of the requests and tokens in the client's measuring window, for all engines of the run.
[[nodiscard]] std::vector<PredictedMetric> client_metrics(const ServeResult& result,
                                                          const MappedRun& run);

/// Maximum number of requests running simultaneously.
[[nodiscard]] std::size_t max_running(const ServeResult& result);

/// Returns the metric of the residual model for a value ("TTFT", "TTFT tail"); empty if there is
/// none.
[[nodiscard]] std::string_view residual_metric(std::string_view metric, std::string_view stat);

}  // namespace kvsim
