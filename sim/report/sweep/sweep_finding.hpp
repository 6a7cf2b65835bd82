#pragma once

#include <string>

#include "sim/report/sweep/scenario_sweep.hpp"

namespace kvsim {

/// The finding of a sweep over a scenario's keys: what compression changes or, if the method does
/// not vary, the range of the main measure.
[[nodiscard]] std::string sweep_finding(const ScenarioSweep& sweep);

}  // namespace kvsim
