#pragma once

// report.html of a results folder: findings as text, interactive charts, the scenario as run, and
// the sources of the numbers, in one file (sim/report/html). Its size is bounded: a page shows only
// the first of many points and terms and thinned series of many steps, and reports this.

#include <string>
#include <vector>

#include "sim/report/figure/figure.hpp"
#include "sim/report/sweep/scenario_sweep.hpp"

namespace kvsim {

/// The whole page.
[[nodiscard]] std::string scenario_sweep_page(const ScenarioSweep& sweep, const FigureSet& figures,
                                              const std::vector<std::string>& notes);

}  // namespace kvsim
