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

/// Samples of an engine's state where none are needed: its first and last.
inline constexpr std::size_t kNoSamples = 2;

/// A metric's value as its client would report it of a simulated run, and its 90 % interval.
struct PredictedMetric {
  std::string metric, stat;
  double value = 0;
  std::optional<double> low{}, high{};
  std::optional<Response> response{};  // to times: sim/serve/account/serve_draws.hpp
};

/// Metrics of the requests and tokens in the client's measuring window, of all engines of the run.
[[nodiscard]] std::vector<PredictedMetric> client_metrics(const ServeResult& result,
                                                          const MappedRun& run);

/// The most requests that run at one time.
[[nodiscard]] std::size_t max_running(const ServeResult& result);

/// The metric of the residual model that a value belongs to ("TTFT", "TTFT tail"); empty: none.
[[nodiscard]] std::string_view residual_metric(std::string_view metric, std::string_view stat);

}  // namespace kvsim
