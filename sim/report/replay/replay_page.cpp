#include "sim/report/replay/replay_page.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "sim/replay/replay_metrics.hpp"
#include "sim/report/figure/line_names.hpp"
#include "sim/report/folder/page_parts.hpp"
#include "sim/report/replay/equal_bytes.hpp"
#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/replay/replay_finding.hpp"
#include "sim/report/replay/replay_summary.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMaxCells = 60'000;  // heads of all methods

std::string method_words(const ReplayMethod& method) {
  return method.budget ? fmt::format("{}, {}", method.name, budget_text(*method.budget))
                       : method.name;
}

}  // namespace

void cut_replay(ordered_json& replay) {
  if (!replay.contains("methods")) return;
  for (ordered_json& method : replay["methods"]) {
    for (const char* key : {"per_step", "per_step_layers", "per_head", "layers", "paged"}) {
      method.erase(key);
    }
    if (method["measured_law"].is_object()) method["measured_law"].erase("by_layer");
  }
}

ordered_json kept_json(const ReplayResult& replay, std::vector<std::string>& cuts) {
  ordered_json out = ordered_json::array();
  std::size_t cells = 0;
  for (const ReplayMethod& method : replay.methods) {
    const bool by_head = !method.heads.empty();
    const std::vector<ReplayCell>& from = by_head ? method.heads : method.layers;
    cells += from.size();
    if (cells > kMaxCells) {
      cuts.push_back(
          fmt::format("Entries kept by layer and head are of the first {} of {} methods.",
                      out.size(), replay.methods.size()));
      break;
    }
    ordered_json one{{"label", method_words(method)}, {"by_head", by_head}};
    one["cells"] = ordered_json::array();
    for (const ReplayCell& cell : from) {
      one["cells"].push_back({cell.layer, std::max(cell.head, 0), cell.entries_final,
                              cell.bytes_final, cell.rel_error_mean});
    }
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<PageSentence> replay_sentences(const ReplayResult& replay,
                                           const std::vector<SkippedMethod>& skipped) {
  std::vector<PageSentence> out;
  out.push_back({fmt::format("Replay of trace {} ({}): {} methods and budgets.",
                             clean_text(replay.trace), replay.source, replay.methods.size())});
  out.push_back({replay_finding(replay)});
  for (const EqualBytes& band : equal_bytes(replay)) {
    const ReplayMethod& best = *band.methods.front();
    const std::string budget =
        best.budget ? fmt::format(" (budget {})", budget_text(*best.budget)) : std::string{};
    out.push_back(
        {fmt::format("Least error of the {} that hold {} of the full cache's bytes: {}{}, "
                     "mean relative error{} {}.",
                     band.methods.size(), share_range(band.low, band.high), best.name, budget,
                     where_ranked(replay), amount(ranked_error(best)))});
  }
  if (!skipped.empty()) {
    out.push_back({fmt::format("{} method{} could not run on this trace.", skipped.size(),
                               skipped.size() == 1 ? "" : "s")});
  }
  return out;
}

std::string replay_page(const ReplayResult& replay, const std::vector<SkippedMethod>& skipped,
                        const ordered_json& document, const FigureSet& figures) {
  std::vector<std::string> cuts;
  ordered_json shown{{"replay", document}};
  shown["notes"] = document.value("notes", ordered_json::array());
  cut_replay(shown["replay"]);
  ordered_json extras = ordered_json::object();
  extras["kept"] = kept_json(replay, cuts);
  extras["methods"] = page_columns(infos_of(replay_metrics()));
  return page_text({.title = fmt::format("Replay of {}", clean_text(replay.trace)),
                    .lead = "A recorded attention trace run through compression methods: bytes "
                            "held and read, and the error of the attention output.",
                    .sentences = replay_sentences(replay, skipped),
                    .summary = replay_summary(replay, skipped, nullptr, kSummaryWidth),
                    .data = data_of("replay", std::move(shown), figures, std::move(extras), cuts)});
}

std::string aggregate_page(const std::vector<ReplayResult>& replays, const ordered_json& document,
                           const FigureSet& figures) {
  return page_text(
      {.title = fmt::format("Replay of {} traces", replays.size()),
       .lead = "Means over traces with equal weights, and Student's 95 % intervals.",
       .sentences = {{fmt::format("Means over {} traces; each trace's own page is in its "
                                  "folder.",
                                  replays.size())},
                     {aggregate_finding(aggregate(replays))}},
       .summary = aggregate_summary(replays, nullptr, kSummaryWidth),
       .data = data_of("aggregate", document, figures,
                       {{"means", page_columns(aggregate_metrics())}}, {})});
}

}  // namespace kvsim
