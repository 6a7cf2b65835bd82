#pragma once

// report.html of a results folder: what came out in words, interactive charts of it, the scenario
// as run, and what the numbers rest on, in one file (sim/report/html). Its size is bounded: of many
// points, terms and steps the page has the first or a thinned series, and says so.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/plan/plan_result.hpp"
#include "sim/report/figures.hpp"
#include "sim/report/replay_sweep.hpp"
#include "sim/report/run_report.hpp"
#include "sim/report/scenario_sweep.hpp"

namespace kvsim {

/// The schema of the data within: counted up when a key changes its meaning.
inline constexpr const char* kPageSchema = "kvsim.report/1";

/// Each: the whole page. `document` is what result.json or plan.json holds, `figures` what is
/// drawn beside it.
[[nodiscard]] std::string run_page(const RunReport& report, const nlohmann::ordered_json& document,
                                   const FigureSet& figures);
[[nodiscard]] std::string replay_page(const ReplayResult& replay,
                                      const std::vector<SkippedMethod>& skipped,
                                      const nlohmann::ordered_json& document,
                                      const FigureSet& figures);
/// Of several traces together.
[[nodiscard]] std::string aggregate_page(const std::vector<ReplayResult>& replays,
                                         const nlohmann::ordered_json& document,
                                         const FigureSet& figures);
[[nodiscard]] std::string plan_page(const Scenario& scenario, const PlanResult& plan,
                                    const nlohmann::ordered_json& document,
                                    const FigureSet& figures);
[[nodiscard]] std::string sweep_page(const ReplaySweep& sweep,
                                     const nlohmann::ordered_json& document,
                                     const FigureSet& figures);
[[nodiscard]] std::string scenario_sweep_page(const ScenarioSweep& sweep, const FigureSet& figures,
                                              const std::vector<std::string>& notes);

}  // namespace kvsim
