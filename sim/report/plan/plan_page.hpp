#pragma once

// report.html of a results folder: what came out in words, interactive charts of it, the scenario
// as run, and what the numbers rest on, in one file (sim/report/html). Its size is bounded: of many
// points, terms and steps the page has the first or a thinned series, and says so.

#include <string>

#include <nlohmann/json.hpp>

#include "sim/plan/plan_result.hpp"
#include "sim/report/figure/figure.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The whole page. `document` is the contents of result.json or plan.json, `figures` are drawn next
/// to it.
[[nodiscard]] std::string plan_page(const Scenario& scenario, const PlanResult& plan,
                                    const nlohmann::ordered_json& document,
                                    const FigureSet& figures);

}  // namespace kvsim
