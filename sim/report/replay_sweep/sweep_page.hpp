#pragma once

// report.html of a results folder: findings as text, interactive charts, the scenario as run, and
// the sources of the numbers, in one file (sim/report/html). Its size is bounded: a page shows only
// the first of many points and terms and thinned series of many steps, and reports this.

#include <string>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "sim/report/replay_sweep/replay_sweep.hpp"

namespace kvsim {

/// The whole page. `document` is the contents of result.json or plan.json; `figures` are the
/// figures drawn next to it.
[[nodiscard]] std::string sweep_page(const ReplaySweep& sweep,
                                     const nlohmann::ordered_json& document,
                                     const FigureSet& figures);

}  // namespace kvsim
