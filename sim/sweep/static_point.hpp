#pragma once

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The point runner of scenarios of kind "static": run_static's figures under the names that
/// results of `kvsim run` give them, without intervals, terms and timelines; `fits` is whether it
/// ran to its end. Pure. Errors: as run_static.
[[nodiscard]] nlohmann::ordered_json run_static_point(const Scenario& scenario,
                                                      const ScenarioPoint& point);

}  // namespace kvsim
