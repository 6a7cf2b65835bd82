#pragma once

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The point runner of scenarios of kind "static". Returns the metrics of run_static under the
/// names of `kvsim run`, without intervals, terms and timelines; `fits` is whether the run reached
/// its end. Pure. Errors: same as run_static.
[[nodiscard]] nlohmann::ordered_json run_static_point(const Scenario& scenario,
                                                      const ScenarioPoint& point);

}  // namespace kvsim
