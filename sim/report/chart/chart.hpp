#pragma once

// What a chart shows, apart from how gnuplot draws it. Colours are those of Okabe and Ito ("Color
// Universal Design", 2008), each with its own dash and mark, so that grey print and colour-blind
// eyes can follow a line.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/figure/figure.hpp"

namespace kvsim {

struct ChartPoint {
  double x = 0, y = 0;
};

/// From `low` to `high` at x: how far values spread about a point.
struct ChartSpread {
  double x = 0, low = 0, high = 0;
};

struct ChartLine {
  std::string label{};
  std::vector<ChartPoint> points{};
  std::vector<ChartSpread> spreads{};     // bars through points
  std::vector<ChartSpread> band{};        // 90 % interval; shaded on pages, not printed
  std::optional<ChartPoint> lone_mark{};  // a value off the line, such as the prefill's peak
  std::optional<ChartPoint> end{};        // a cross: where it ran out of memory
  bool has_marks = true;                  // false: a value that x does not change, drawn across
};

/// A horizontal line over the whole width: what the GPU has.
struct ChartLevel {
  std::string label{};
  double y = 0;
};

/// A vertical line over the whole height: a bound that must be met. The legend lists it.
struct ChartPlumb {
  std::string label{};
  double x = 0;
};

/// A place on a line that a text calls out.
struct ChartCallout {
  std::string text;
  ChartPoint at;
  std::optional<std::size_t> line{};  // whose colour it takes; black where it is of several
};

struct LineChart {
  std::string name{}, title{};
  std::string x_label{}, y_label{};
  std::string x_column{}, y_column{};  // of the CSV, with unit
  double y_unit = 1;                   // the CSV's unit in one of the axis's: 2^30 for GiB
  std::string lone_mark_label{};       // "peak of prefill"
  std::string end_label{};             // "out of memory"
  bool log_y_where_wide = false;       // logarithmic if all values are positive and need it
  bool log_x_where_wide = false;       // to base 2, if x doubles from value to value over at least
                                       // a factor of 8
  bool integer_x = true;               // whole-number ticks ("53,912")
  bool log_seconds_x = false;          // x > 0 are seconds; the label gets s, ms or µs
  bool steps = false;  // a value holds up to the next x, the first rises from 0: a distribution
  std::vector<ChartLine> lines{};
  std::vector<ChartLevel> levels{};
  std::vector<ChartPlumb> plumbs{};
  std::vector<ChartCallout> callouts{};
};
[[nodiscard]] Figure draw(const LineChart& chart);

/// How a part of a bar or a band is filled.
struct Fill {
  std::string_view colour;
  int pattern = 0;    // 0: solid; else gnuplot's hatching of that number on white
  bool dark = false;  // white text on it
  friend constexpr bool operator==(const Fill&, const Fill&) = default;
};
struct PartStyle {
  std::string_view words;  // of the legend
  Fill fill;
};

/// The owners' parts of a whole over time: stacked bands, the first at the bottom.
struct AreaBand {
  PartStyle style{};
  std::string column{};          // of the CSV, with unit
  std::vector<double> values{};  // one each x
};
struct AreaChart {
  std::string name{}, title{};
  std::string x_label{}, y_label{};
  std::string x_column{};
  double y_unit = 1;
  std::vector<double> x{};  // ascending
  std::vector<AreaBand> bands{};
  std::vector<ChartLevel> levels{};
};
[[nodiscard]] Figure draw(const AreaChart& chart);

/// Marks of one kind, such as a method at several budgets; joined by a thin line in x's order.
struct MarkGroup {
  std::string label{};
  std::vector<ChartPoint> points{};
  bool reference = false;              // no method to choose: not part of the front
  std::optional<std::size_t> style{};  // which of the line styles; else by its place
  bool faint = false;  // small and grey, under the others and without a legend entry
};

/// Marks, and the front of those that nothing is below and left of. Axes are logarithmic where
/// values need it.
struct ScatterChart {
  std::string name{}, title{};
  std::string x_label{}, y_label{};
  std::string x_column{}, y_column{};  // of the CSV
  double x_scale = 1;                  // the axis shows the CSV's x times this (percent)
  bool log_x = false;                  // x > 0, logarithmic where it is needed
  std::string faint_label{};           // of all faint groups
  std::string remark{};                // a last entry of the legend, without a mark
  std::vector<MarkGroup> groups{};     // y > 0
};
/// The marks that no other is below and left of (or as far in one and further in the other), by x.
[[nodiscard]] std::vector<ChartPoint> pareto_front(const std::vector<MarkGroup>& groups);
[[nodiscard]] Figure draw(const ScatterChart& chart);

/// Predicted against measured on axes of one range, logarithmic where values need it, the line
/// where both agree and a band about it.
struct ParityChart {
  std::string name{}, title{};
  std::string x_label{}, y_label{};    // measured, predicted
  std::string x_column{}, y_column{};  // of the CSV
  double band = 0;                     // half the band's width, as a share of the measured
  std::string band_label{};
  std::vector<MarkGroup> groups{};  // x, y > 0; `reference` and joining lines do not matter
};
[[nodiscard]] Figure draw(const ParityChart& chart);

/// What a value may be instead, given how uncertain it is.
struct ChartRange {
  double low = 0, high = 0;
};

/// One horizontal bar of parts from 0, and a tick at a limit.
struct ChartBar {
  std::string label{};
  std::string detail{};  // under the label
  bool heading = false;  // no bar: the label is a heading of those that follow
  std::vector<std::pair<PartStyle, double>> parts{};  // drawn in this order
  std::optional<double> limit{};
  std::optional<double> cut{};     // what is longer ends here, with a break mark
  std::string end_text{};          // next to the bar's end: one or two lines
  bool inside_numbers = true;      // each part's number in it, where it has room
  std::optional<double> beside{};  // a thinner bar under it, to compare with
  std::string beside_text{};
  std::optional<ChartRange> range{};  // a line with caps over the bar
};
struct BarChart {
  std::string name{}, title{};
  std::string x_label{};
  std::string column{};  // of the CSV, with unit
  double unit = 1;
  std::string limit_label{};
  std::string beside_label{};
  std::string range_label{};        // of all ranges
  std::vector<PartStyle> styles{};  // of all parts, in the legend's order
  std::vector<ChartBar> bars{};
};
[[nodiscard]] Figure draw(const BarChart& chart);

/// A value for each pair of two keys, as a colour with its number in it. Cells are of one size,
/// whatever the keys' values.
struct HeatMap {
  std::string name{}, title{};
  std::string x_label{}, y_label{}, z_label{};
  std::string x_column{}, y_column{}, z_column{};            // of the CSV, with unit
  double z_unit = 1;                                         // the CSV's unit in one of the scale's
  std::vector<std::string> x_values{}, y_values{};           // what ticks say, in order
  std::vector<std::vector<std::optional<double>>> values{};  // [y][x]; absent: a blank cell
};
[[nodiscard]] Figure draw(const HeatMap& map);

}  // namespace kvsim
