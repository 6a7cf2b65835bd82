#include "sim/report/replay_sweep/sweep_page.hpp"

#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/replay/replay_metrics.hpp"
#include "sim/report/folder/page_parts.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

}  // namespace

std::string sweep_page(const ReplaySweep& sweep, const ordered_json& document,
                       const FigureSet& figures) {
  std::vector<std::string> cuts;
  ordered_json shown = document;
  cut_points(shown, cuts);
  for (ordered_json& point : shown["points"]) {
    for (const char* key : {"per_step", "per_head", "layers", "paged", "measured_law", "counts"}) {
      point["method"].erase(key);
    }
  }
  return page_text(
      {.title = fmt::format("Sweep of {} methods over a trace", sweep.methods.size()),
       .lead = "Replays of a recorded attention trace over a grid of parameters.",
       .sentences = lines_that_begin(sweep_summary(sweep, nullptr, kOneLine),
                                     {"Sweep of ", "best ", "Finding: "}),
       .summary = sweep_summary(sweep, nullptr, kSummaryWidth),
       .data = data_of("sweep", std::move(shown), figures,
                       {{"methods", page_columns(infos_of(replay_metrics()))}}, cuts)});
}

}  // namespace kvsim
