#pragma once

// report.html of a results folder: findings as text, interactive charts, the scenario as run, and
// the sources of the numbers, in one file (sim/report/html). Its size is bounded: a page shows only
// the first of many points and terms and thinned series of many steps, and reports this.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "sim/report/html/page.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// Erases the parts of a replay's document that charts already show or that a page does not show.
void cut_replay(nlohmann::ordered_json& replay);
/// Entries and error of each stored head, or of each layer if heads were not kept.
[[nodiscard]] nlohmann::ordered_json kept_json(const ReplayResult& replay,
                                               std::vector<std::string>& cuts);
/// The finding, the method with the smallest error at equal bytes, then the methods that could not
/// run.
[[nodiscard]] std::vector<PageSentence> replay_sentences(const ReplayResult& replay,
                                                         const std::vector<SkippedMethod>& skipped);

/// The whole page. `document` is the contents of result.json or plan.json; `figures` are the
/// figures drawn next to it.
[[nodiscard]] std::string replay_page(const ReplayResult& replay,
                                      const std::vector<SkippedMethod>& skipped,
                                      const nlohmann::ordered_json& document,
                                      const FigureSet& figures);
/// The page of several traces.
[[nodiscard]] std::string aggregate_page(const std::vector<ReplayResult>& replays,
                                         const nlohmann::ordered_json& document,
                                         const FigureSet& figures);

}  // namespace kvsim
