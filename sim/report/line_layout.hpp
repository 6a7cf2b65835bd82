#pragma once

// Inside of the line chart: where lines, their marks and their signs stand on paper.

#include <cmath>
#include <cstddef>
#include <vector>

#include "sim/report/chart.hpp"
#include "sim/report/chart_parts.hpp"

namespace kvsim::chart {

inline constexpr double kLineLeft = 104;  // pixels beside the plot
inline constexpr double kLinePlotWidth = plot_width(kLineLeft);
inline constexpr double kLinePlotHeight = 330;

/// The rectangle the lines fill, in the axis's units, and where its points stand on paper.
struct LineBox {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  bool log_x = false, log_y = false;
  double y_unit = 1;
  double height = kLinePlotHeight;  // pixels from y_low to y_high

  [[nodiscard]] double pixel_x(double x) const {
    return share(x, x_low, x_high, log_x) * kLinePlotWidth;
  }
  [[nodiscard]] double pixel_y(double y) const {
    return share(y / y_unit, y_low, y_high, log_y) * height;
  }
  /// The x that stands `pixel` from the left edge.
  [[nodiscard]] double x_at(double pixel) const {
    const double s = pixel / kLinePlotWidth;
    return log_x ? x_low * std::pow(x_high / x_low, s) : x_low + s * (x_high - x_low);
  }

 private:
  static double share(double value, double low, double high, bool log) {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
};

/// Whether a level is among the lines: one far above would leave them no room, and is told instead.
[[nodiscard]] bool is_drawn(const LineChart& chart, const ChartLevel& level);
/// The axes that hold every line, mark and level.
[[nodiscard]] LineBox extent(const LineChart& chart);

/// Where lines lie on each other each is seen in its own slots: the pieces of line `i`, to be drawn
/// over all lines.
[[nodiscard]] std::vector<std::vector<ChartPoint>> stripes_of(const LineChart& chart, std::size_t i,
                                                              const LineBox& box);

/// Where a line's marks stand. Those of a long series are spread over it, each line's in its own
/// places; those of a few values stand at them, side by side along the line where lines meet.
[[nodiscard]] std::vector<ChartPoint> marks_of(const LineChart& chart, std::size_t i,
                                               const LineBox& box);

/// Open marks and crosses, a list a line, none on another.
struct Signs {
  std::vector<std::vector<ChartPoint>> lone_marks, ends;
  double leftmost = 0;  // pixels
};
[[nodiscard]] Signs signs_of(const LineChart& chart, const LineBox& box);
/// Room at the left for what `signs_of` moved there.
void make_room(const LineChart& chart, LineBox& box);

}  // namespace kvsim::chart
