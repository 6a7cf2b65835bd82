#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/report/atomic_file.hpp"
#include "sim/report/figure_style.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/run_report.hpp"

namespace kvsim {

struct FolderOptions {
  bool figures = true;
  GnuplotOptions gnuplot;
  bool page = true;  // report.html
  FigureStyle style{};
};

/// What was written.
struct ResultsFolder {
  std::filesystem::path folder;
  std::vector<std::string> figures;  // "figures/memory_vs_length.svg", …, relative to the folder
  std::vector<std::string> notes;    // what could not be drawn and why; stands in result.json too
  bool page = false;                 // whether report.html is there
};

/// A line a figure, "figure   DIR/figures/NAME.png", and what else each was drawn as; for a
/// terminal.
[[nodiscard]] std::string figure_lines(const ResultsFolder& written);

/// Draws into figures/ of the folder under construction, which will be `folder`; names come back
/// relative to it. Nothing is drawn where `options` want none.
[[nodiscard]] ResultsFolder draw_into(const AtomicFolder& building, const FigureSet& set,
                                      const std::filesystem::path& folder,
                                      const FolderOptions& options);

/// The page's file in a results folder.
inline constexpr const char* kPageFile = "report.html";
/// Writes the page into the folder under construction and marks it as written.
void write_page(const AtomicFolder& building, const std::string& text, ResultsFolder& written);

/// Checks that write_run_results could write to `folder`, so that a run does not compute for an
/// hour to be refused. Errors: as write_run_results.
void check_results_folder(const std::filesystem::path& folder);

/// The results folder of a run of `document` (run_document): result.json, points.csv, timeline.csv,
/// owners.csv, time_terms.csv, layers.csv, replay_steps.csv, replay_layer_steps.csv (where there is
/// a replay) and figures/. It appears whole or not at all, and replaces an older one that kvsim
/// wrote. Errors: InputError "FOLDER: cannot be written: …", or if FOLDER is there and holds what
/// kvsim did not write.
ResultsFolder write_run_results(const RunReport& report, nlohmann::ordered_json document,
                                const std::filesystem::path& folder,
                                const FolderOptions& options = {});

/// As above, of a replay alone (`kvsim replay -o DIR`): result.json is the replay document.
ResultsFolder write_replay_results(const ReplayResult& replay,
                                   const std::vector<SkippedMethod>& skipped,
                                   const std::filesystem::path& folder,
                                   const FolderOptions& options = {});

/// As above, of several traces together: result.json ("kvsim.aggregate/1"), aggregate.csv, figures.
ResultsFolder write_aggregate_results(const std::vector<ReplayResult>& replays,
                                      const std::filesystem::path& folder,
                                      const FolderOptions& options = {});

}  // namespace kvsim
