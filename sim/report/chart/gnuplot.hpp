#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/figure/figure.hpp"
#include "sim/report/figure/figure_style.hpp"

namespace kvsim {

/// `text` as a single-quoted gnuplot string, in which neither commands in backquotes nor escapes
/// are interpreted. Control characters become spaces, invalid UTF-8 "?" and "'" a typographic
/// apostrophe. "]]>" is forbidden in SVG, so an invisible character separates it. For terminals
/// with `noenhanced`.
[[nodiscard]] std::string gnuplot_quote(std::string_view text);

struct GnuplotOptions {
  std::string program = "gnuplot";   // looked up in PATH
  std::chrono::seconds timeout{60};  // per figure
};

/// The result of drawing: file names relative to the folder, and problems. A missing gnuplot is a
/// note, not an error: data and scripts are written in any case.
struct DrawnFigures {
  std::vector<std::string> files;
  std::vector<std::string> notes;
  bool failed = false;  // gnuplot exists and failed to draw some figure
};

/// Writes the figures' CSV, script and document into `folder` (which exists) and runs gnuplot on
/// each. Errors: InputError if kvsim or gnuplot cannot write into `folder`.
[[nodiscard]] DrawnFigures draw_figures(const std::vector<Figure>& figures,
                                        const std::filesystem::path& folder,
                                        const GnuplotOptions& options = {},
                                        const FigureStyle& style = {});

}  // namespace kvsim
