#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/figure/figure.hpp"
#include "sim/report/figure/figure_style.hpp"
#include "sim/report/files/atomic_file.hpp"

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
  std::vector<std::string> notes;    // figures that could not be drawn, with the reason; also in
                                     // result.json
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
/// hour to be refused. Errors: as AtomicFolder.
void check_results_folder(const std::filesystem::path& folder);

}  // namespace kvsim
