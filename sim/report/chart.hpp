#pragma once

// What a chart shows, apart from how gnuplot is told. Colours are those of Okabe and Ito ("Color
// Universal Design", 2008), each with its own dash and mark, so that grey print and colour-blind
// eyes can follow a line.

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/report/figures.hpp"

namespace kvsim {

struct ChartPoint {
  double x = 0, y = 0;
};

struct ChartLine {
  std::string label;
  std::vector<ChartPoint> points;
  std::optional<ChartPoint> lone_mark;  // a value off the line, such as the prefill's peak
};

/// A horizontal line over the whole width: what the GPU has.
struct ChartLevel {
  std::string label;
  double y = 0;
};

/// A place on a line that a text calls out.
struct ChartCallout {
  std::string text;
  ChartPoint at;
  std::size_t line = 0;  // whose colour it takes
};

struct LineChart {
  std::string name{}, title{};
  std::string x_label{}, y_label{};
  std::string x_column{}, y_column{};  // of the CSV, with unit
  double y_unit = 1;                   // the CSV's unit in one of the axis's: 2^30 for GiB
  std::string lone_mark_label{};       // "peak of prefill"
  bool log_y_where_wide = false;       // logarithmic if all values are positive and span 30 times
  bool integer_x = true;               // whole-number ticks ("53,912")
  std::vector<ChartLine> lines{};
  std::vector<ChartLevel> levels{};
  std::vector<ChartCallout> callouts{};
};
[[nodiscard]] Figure draw(const LineChart& chart);

/// The part of a bar that was asked for and not had: white, without a number.
inline constexpr const char* kAskedFor = "asked for";

/// One horizontal bar of parts from 0, and a tick at a limit.
struct ChartBar {
  std::string label;
  std::string detail;    // under the label
  bool heading = false;  // no bar: the label stands over those that follow
  std::vector<std::pair<std::string, double>> parts;  // name, value; drawn in this order
  std::optional<double> limit;
};
struct BarChart {
  std::string name{}, title{};
  std::string x_label;
  std::string column;  // of the CSV, with unit
  double unit = 1;
  std::string limit_label;
  std::vector<std::string> part_order{};  // a part's place here gives its colour, in every file
  std::vector<ChartBar> bars{};
};
[[nodiscard]] Figure draw(const BarChart& chart);

}  // namespace kvsim
