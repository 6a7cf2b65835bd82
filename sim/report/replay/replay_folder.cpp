#include "sim/report/replay/replay_folder.hpp"

#include <algorithm>
#include <string>

#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/replay/replay_csv.hpp"
#include "sim/report/replay/replay_figures.hpp"
#include "sim/report/replay/replay_finding.hpp"
#include "sim/report/replay/replay_json.hpp"
#include "sim/report/replay/replay_page.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/version.hpp"

namespace kvsim {
void write_replay_tables(const AtomicFolder& building, const ReplayResult& replay) {
  building.write("replay_methods.csv", replay_methods_csv(replay));
  building.write("replay_steps.csv", replay_steps_csv(replay));
  building.write("replay_layer_steps.csv", replay_layer_steps_csv(replay));
  building.write("replay_layers.csv", replay_layers_csv(replay));
  if (const std::string kept = replay_kept_csv(replay); !kept.empty()) {
    building.write("replay_kept.csv", kept);
  }
  const bool paged = std::any_of(replay.methods.begin(), replay.methods.end(),
                                 [](const ReplayMethod& m) { return !m.paged.empty(); });
  if (paged) building.write("replay_paged.csv", replay_paged_csv(replay));
}

ResultsFolder write_replay_results(const ReplayResult& replay,
                                   const std::vector<SkippedMethod>& skipped,
                                   const std::filesystem::path& folder,
                                   const FolderOptions& options) {
  AtomicFolder building{folder};
  const FigureSet figures = replay_figures(replay);
  ResultsFolder out = draw_into(building, figures, folder, options);
  const nlohmann::ordered_json document = replay_document(replay, skipped, out.notes);
  if (options.page) write_page(building, replay_page(replay, skipped, document, figures), out);
  building.write("result.json", to_file_text(document));
  write_replay_tables(building, replay);
  building.commit();
  return out;
}

ResultsFolder write_aggregate_results(const std::vector<ReplayResult>& replays,
                                      const std::filesystem::path& folder,
                                      const FolderOptions& options) {
  AtomicFolder building{folder};
  const std::vector<AggregateRow> rows = aggregate(replays);
  std::vector<std::string> sources;
  for (const ReplayResult& replay : replays) sources.push_back(replay.source);
  const FigureSet figures = aggregate_figures(rows, sources);
  ResultsFolder out = draw_into(building, figures, folder, options);
  nlohmann::ordered_json document{{"schema", "kvsim.aggregate/1"}};
  document["kvsim"] = {{"version", kvsim_version()}};
  document["traces"] = nlohmann::ordered_json::array();
  for (const ReplayResult& replay : replays) document["traces"].push_back(replay.trace);
  document["aggregate"] = aggregate_json(rows);
  document["finding"] = aggregate_finding(rows);
  document["notes"] = out.notes;
  if (options.page) write_page(building, aggregate_page(replays, document, figures), out);
  building.write("result.json", to_file_text(document));
  building.write("aggregate.csv", aggregate_csv(rows));
  building.commit();
  return out;
}

}  // namespace kvsim
