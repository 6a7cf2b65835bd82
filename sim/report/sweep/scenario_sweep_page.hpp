#pragma once

// report.html of a results folder: what came out in words, interactive charts of it, the scenario
// as run, and what the numbers rest on, in one file (sim/report/html). Its size is bounded: of many
// points, terms and steps the page has the first or a thinned series, and says so.

#include <string>
#include <vector>

#include "sim/report/figure/figure.hpp"
#include "sim/report/sweep/scenario_sweep.hpp"

namespace kvsim {

/// The whole page.
[[nodiscard]] std::string scenario_sweep_page(const ScenarioSweep& sweep, const FigureSet& figures,
                                              const std::vector<std::string>& notes);

}  // namespace kvsim
