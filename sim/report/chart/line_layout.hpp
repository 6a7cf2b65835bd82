#pragma once

// Internals of the line chart: positions of lines, marks and texts.

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/chart_parts.hpp"

namespace kvsim::chart {

inline constexpr double kLinePlotHeight = 330;

/// The rectangle that the lines fill, in the axis's units, and the positions of its points.
struct LineBox {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  bool log_x = false, log_y = false;
  double y_unit = 1;
  double width = 0;                 // pixels from x_low to x_high
  double height = kLinePlotHeight;  // pixels from y_low to y_high

  [[nodiscard]] double pixel_x(double x) const { return share(x, x_low, x_high, log_x) * width; }
  [[nodiscard]] double pixel_y(double y) const {
    return share(y / y_unit, y_low, y_high, log_y) * height;
  }
  /// The x at `pixel` from the left edge.
  [[nodiscard]] double x_at(double pixel) const {
    const double s = pixel / width;
    return log_x ? x_low * std::pow(x_high / x_low, s) : x_low + s * (x_high - x_low);
  }
  /// The value, in the axis's units, at `pixel` above the lower edge.
  [[nodiscard]] double y_at(double pixel) const {
    const double s = pixel / height;
    return log_y ? y_low * std::pow(y_high / y_low, s) : y_low + s * (y_high - y_low);
  }

 private:
  static double share(double value, double low, double high, bool log) {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
};

/// Whether a level is drawn among the lines. A level far above would leave too little space for
/// them; its name is printed instead.
[[nodiscard]] bool is_drawn(const LineChart& chart, const ChartLevel& level);
/// The axes that contain every line, mark and level; the caller sets the width.
[[nodiscard]] LineBox extent(const LineChart& chart);
/// Ticks of the vertical axis from `y_low` to `y_high`.
[[nodiscard]] std::vector<Tick> ticks_up(const LineBox& box);
/// Ticks of the horizontal axis, and the axis's name with the ticks' unit.
[[nodiscard]] std::vector<Tick> ticks_across(const LineChart& chart, const LineBox& box);
[[nodiscard]] std::string x_name(const LineChart& chart, const LineBox& box);

/// Makes coinciding lines visible in separate slots: the pieces of line `i`, drawn over all lines.
[[nodiscard]] std::vector<std::vector<ChartPoint>> stripes_of(const LineChart& chart, std::size_t i,
                                                              const LineBox& box);

/// The marks of all lines, each at one of its line's values. A short line has marks at every value,
/// a long one at some values spread over it; different lines have marks at different places.
[[nodiscard]] std::vector<NestedMark> marks_of(const LineChart& chart, const LineBox& box);

/// A text above the lines, in a separate row if it would overlap another.
struct Banner {
  std::string text;
  double left = 0, right = 0;  // pixels
  ChartPoint points_to;        // in data units
  std::string_view colour;
  bool has_stem = false;  // a line from the text to its point
  int row = 0;
};
/// Names of levels and callouts. No stem passes through a text.
[[nodiscard]] std::vector<Banner> banners_of(const LineChart& chart, const LineBox& box);

}  // namespace kvsim::chart
