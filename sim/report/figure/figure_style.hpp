#pragma once

#include <string>
#include <vector>

namespace kvsim {

/// How figures come out: in which formats, and for a screen or for a page.
struct FigureStyle {
  std::vector<std::string> formats{"svg", "png"};  // of figure_formats()
  /// For a page: no title (the caption has it), 8-point text, thinner lines, `width_in` wide.
  bool paper = false;
  double width_in = kPage;

  static constexpr double kPage = 6.9;    // inches: both columns
  static constexpr double kColumn = 3.3;  // one
};

/// "svg", "png", "pdf".
[[nodiscard]] const std::vector<std::string>& figure_formats();

}  // namespace kvsim
