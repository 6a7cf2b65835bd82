#pragma once

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The point runner of scenarios of kind "serve". Returns the metrics of `kvsim run` with their
/// intervals (service_metrics_json), without timelines, owners and requests; `fits` is whether the
/// engine started and served any request. Pure. Errors: same as run_serve.
[[nodiscard]] nlohmann::ordered_json run_serve_point(const Scenario& scenario,
                                                     const ScenarioPoint& point);

}  // namespace kvsim
