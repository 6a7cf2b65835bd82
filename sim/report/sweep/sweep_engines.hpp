#pragma once

#include "sim/report/sweep/scenario_sweep.hpp"

namespace kvsim {

/// A scenario with one point for each engine and model of the sweep's points, for engines_json and
/// engines_text. Skipped points are omitted.
[[nodiscard]] Scenario sweep_engines(const ScenarioSweep& sweep);

}  // namespace kvsim
