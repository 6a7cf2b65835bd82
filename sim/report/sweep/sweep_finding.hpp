#pragma once

#include <string>

#include "sim/report/sweep/scenario_sweep.hpp"

namespace kvsim {

/// The finding of a sweep over a scenario's keys.
[[nodiscard]] std::string sweep_finding(const ScenarioSweep& sweep);

}  // namespace kvsim
