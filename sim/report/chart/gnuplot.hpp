#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/figure/figure.hpp"
#include "sim/report/figure/figure_style.hpp"

namespace kvsim {

/// `text` as a gnuplot string: single-quoted, so that neither commands in backquotes nor escapes
/// are looked for in it; control characters become blanks, broken UTF-8 "?" and "'" a typographic
/// apostrophe; "]]>", which no SVG may hold, is parted by an invisible character. For terminals set
/// `noenhanced`.
[[nodiscard]] std::string gnuplot_quote(std::string_view text);

struct GnuplotOptions {
  std::string program = "gnuplot";   // looked up in PATH
  std::chrono::seconds timeout{60};  // a figure
};

/// The result of drawing: names of the files, relative to the folder, and problems. A missing
/// gnuplot is a note, not an error: data and scripts are written in any case.
struct DrawnFigures {
  std::vector<std::string> files;
  std::vector<std::string> notes;
  bool failed = false;  // gnuplot is there and did not draw some figure
};

/// Writes the figures' CSV, script and document into `folder` (which exists) and runs gnuplot on
/// each. Errors: InputError if `folder` cannot be written, by gnuplot neither.
[[nodiscard]] DrawnFigures draw_figures(const std::vector<Figure>& figures,
                                        const std::filesystem::path& folder,
                                        const GnuplotOptions& options = {},
                                        const FigureStyle& style = {});

}  // namespace kvsim
