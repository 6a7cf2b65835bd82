#include "sim/report/results_folder.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/atomic_file.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/replay_aggregate.hpp"
#include "sim/report/report_page.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/serve_csv.hpp"
#include "sim/report/serve_events.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

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

}  // namespace

std::string figure_lines(const ResultsFolder& written) {
  // Of the formats in use one that terminals and mail show at a click stands for all.
  std::vector<std::string> formats;
  for (const char* format : {".png", ".svg", ".pdf"}) {
    const bool used = std::any_of(written.figures.begin(), written.figures.end(),
                                  [&](const std::string& name) { return name.ends_with(format); });
    if (used) formats.emplace_back(format);
  }
  if (formats.empty()) return "";
  std::string out;
  for (const std::string& name : written.figures) {
    if (!name.ends_with(formats.front())) continue;
    out += fmt::format("figure   {}/{}\n", clean_text(written.folder.string()), name);
  }
  formats.erase(formats.begin());
  if (formats.empty()) return out;
  return out + fmt::format("         (each as {} too)\n", fmt::join(formats, " and "));
}

void write_page(const AtomicFolder& building, const std::string& text, ResultsFolder& written) {
  building.write(kPageFile, text);
  written.page = true;
}

ResultsFolder draw_into(const AtomicFolder& building, const FigureSet& set,
                        const std::filesystem::path& folder, const FolderOptions& options) {
  ResultsFolder out{folder, {}, set.notes};
  if (!options.figures || set.figures.empty()) return out;
  const std::filesystem::path place = building.make_folder("figures");
  const DrawnFigures drawn = draw_figures(set.figures, place, options.gnuplot, options.style);
  for (const std::string& file : drawn.files) out.figures.push_back("figures/" + file);
  out.notes.insert(out.notes.end(), drawn.notes.begin(), drawn.notes.end());
  return out;
}

void check_results_folder(const std::filesystem::path& folder) { const AtomicFolder trial{folder}; }

ResultsFolder write_run_results(const RunReport& report, nlohmann::ordered_json document,
                                const std::filesystem::path& folder, const FolderOptions& options) {
  AtomicFolder building{folder};
  const FigureSet figures = run_figures(report);
  ResultsFolder out =
      draw_into(building, wanted_figures(figures, *report.scenario), folder, options);
  for (const std::string& note : out.notes) document["notes"].push_back(note);
  // A page has all figures: it costs no drawing.
  if (options.page) write_page(building, run_page(report, document, figures), out);
  building.write("result.json", to_file_text(document));
  if (report.scenario->kind == "serve") {
    building.write("points.csv", serve_points_csv(document));
    building.write("requests.csv", requests_csv(report));
    building.write("timeline.csv", serve_timeline_csv(report));
    building.write("timeline.json", serve_events_json(report));
  } else {
    building.write("points.csv", points_csv(document));
    building.write("timeline.csv", timeline_csv(report));
    building.write("owners.csv", owners_csv(report));
    building.write("time_terms.csv", time_terms_csv(report));
    building.write("layers.csv", layers_csv(report));
  }
  if (report.replay) write_replay_tables(building, *report.replay);
  building.commit();
  return out;
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
  const FigureSet figures = aggregate_figures(rows);
  ResultsFolder out = draw_into(building, figures, folder, options);
  nlohmann::ordered_json document{{"schema", "kvsim.aggregate/1"}};
  document["kvsim"] = {{"version", kvsim_version()}};
  document["traces"] = nlohmann::ordered_json::array();
  for (const ReplayResult& replay : replays) document["traces"].push_back(replay.trace);
  document["aggregate"] = aggregate_json(rows);
  document["notes"] = out.notes;
  if (options.page) write_page(building, aggregate_page(replays, document, figures), out);
  building.write("result.json", to_file_text(document));
  building.write("aggregate.csv", aggregate_csv(rows));
  building.commit();
  return out;
}

}  // namespace kvsim
