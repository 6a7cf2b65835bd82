#pragma once

// report.html of a results folder: what came out in words, interactive charts of it, the scenario
// as run, and what the numbers rest on, in one file (sim/report/html). Its size is bounded: of many
// points, terms and steps the page has the first or a thinned series, and says so.

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/report/figure/figure.hpp"
#include "sim/report/html/page.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// Erases from a replay's document what charts show already or a page does not show.
void cut_replay(nlohmann::ordered_json& replay);
/// Entries and error of each stored head, or of each layer where heads were not kept.
[[nodiscard]] nlohmann::ordered_json kept_json(const ReplayResult& replay,
                                               std::vector<std::string>& cuts);
/// The finding, which method errs least at equal bytes, then what could not run.
[[nodiscard]] std::vector<PageSentence> replay_sentences(const ReplayResult& replay,
                                                         const std::vector<SkippedMethod>& skipped);

/// The whole page. `document` is the contents of result.json or plan.json, `figures` are drawn next
/// to it.
[[nodiscard]] std::string replay_page(const ReplayResult& replay,
                                      const std::vector<SkippedMethod>& skipped,
                                      const nlohmann::ordered_json& document,
                                      const FigureSet& figures);
/// Of several traces together.
[[nodiscard]] std::string aggregate_page(const std::vector<ReplayResult>& replays,
                                         const nlohmann::ordered_json& document,
                                         const FigureSet& figures);

}  // namespace kvsim
