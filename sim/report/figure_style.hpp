#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/report/gnuplot.hpp"

namespace kvsim {

/// How figures come out: in which formats, and for a screen or for a page.
struct FigureStyle {
  std::vector<std::string> formats{"svg", "png"};  // of figure_formats()
  /// For a page: no title (the caption has it), 8-point text, thinner lines, `width_in` wide.
  bool paper = false;
  double width_in = kPage;

  static constexpr double kPage = 6.9;    // inches: both columns
  static constexpr double kColumn = 3.3;  // one
  [[nodiscard]] bool is_default() const;
};

/// "svg", "png", "pdf".
[[nodiscard]] const std::vector<std::string>& figure_formats();

/// `script` of a figure (Figure::script), drawing in that style. Colours, dashes and marks stay:
/// they tell lines apart in grey as well. In one column legends take a line each, and words in the
/// plot of more than 20 columns are left to the caption. Errors: InputError where `script` is not
/// as kvsim writes it.
[[nodiscard]] std::string styled_script(const std::string& script, const FigureStyle& style);

/// draw_figures of gnuplot.hpp, in that style. Errors: as there, and as styled_script.
[[nodiscard]] DrawnFigures draw_figures(const std::vector<Figure>& figures,
                                        const std::filesystem::path& folder,
                                        const GnuplotOptions& options, const FigureStyle& style);

}  // namespace kvsim
