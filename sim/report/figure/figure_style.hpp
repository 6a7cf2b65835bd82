#pragma once

#include <string>
#include <vector>

namespace kvsim {

/// The style of figures: their formats, and whether they are for a screen or for paper.
struct FigureStyle {
  std::vector<std::string> formats{"svg", "png"};  // of figure_formats()
  /// For paper: no title (the caption has it), 8-point text, thinner lines, `width_in` wide.
  bool paper = false;
  double width_in = kPage;

  static constexpr double kPage = 6.9;    // inches: two columns
  static constexpr double kColumn = 3.3;  // inches: one column
};

/// "svg", "png", "pdf".
[[nodiscard]] const std::vector<std::string>& figure_formats();

}  // namespace kvsim
