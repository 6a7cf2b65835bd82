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

/// The written files.
struct ResultsFolder {
  std::filesystem::path folder;
  std::vector<std::string> figures;  // "figures/memory_vs_length.svg", …, relative to the folder
  std::vector<std::string> notes;    // figures that could not be drawn, with the reason; also in
                                     // result.json
  bool page = false;                 // whether report.html was written
};

/// A line per figure for a terminal: "figure DIR/figures/NAME.png", plus its other formats.
[[nodiscard]] std::string figure_lines(const ResultsFolder& written);

/// Draws into figures/ of the folder under construction, whose final name is `folder`. Returned
/// names are relative to it. Draws nothing if `options` disable figures.
[[nodiscard]] ResultsFolder draw_into(const AtomicFolder& building, const FigureSet& set,
                                      const std::filesystem::path& folder,
                                      const FolderOptions& options);

/// The page's file in a results folder.
inline constexpr const char* kPageFile = "report.html";
/// Writes the page into the folder under construction and marks it as written.
void write_page(const AtomicFolder& building, const std::string& text, ResultsFolder& written);

/// Checks that write_run_results could write to `folder`, so that a long run does not fail at its
/// end. Errors: as AtomicFolder.
void check_results_folder(const std::filesystem::path& folder);

}  // namespace kvsim
