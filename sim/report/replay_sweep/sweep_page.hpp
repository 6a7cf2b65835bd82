#pragma once

// report.html of a results folder: what came out in words, interactive charts of it, the scenario
// as run, and what the numbers rest on, in one file (sim/report/html). Its size is bounded: of many
// points, terms and steps the page has the first or a thinned series, and says so.

#include <string>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "sim/report/replay_sweep/replay_sweep.hpp"

namespace kvsim {

/// The whole page. `document` is the contents of result.json or plan.json, `figures` are drawn next
/// to it.
[[nodiscard]] std::string sweep_page(const ReplaySweep& sweep,
                                     const nlohmann::ordered_json& document,
                                     const FigureSet& figures);

}  // namespace kvsim
