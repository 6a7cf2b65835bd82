#pragma once

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The point runner of scenarios of kind "serve": the figures that `kvsim run` gives of it, with
/// their intervals (service_metrics_json), without timelines, owners and requests; `fits` is
/// whether the engine started and served anything. Pure. Errors: as run_serve.
[[nodiscard]] nlohmann::ordered_json run_serve_point(const Scenario& scenario,
                                                     const ScenarioPoint& point);

}  // namespace kvsim
