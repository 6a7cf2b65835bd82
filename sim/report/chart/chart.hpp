#pragma once

// The contents of a chart, independent of gnuplot. Colours are those of Okabe and Ito ("Color
// Universal Design", 2008). Each colour has a separate dash and mark, so that lines can be
// distinguished in grey print and by colour-blind readers.

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

/// From `low` to `high` at x: the spread of values around a point.
struct ChartSpread {
  double x = 0, low = 0, high = 0;
};

struct ChartLine {
  std::string label{};
  std::vector<ChartPoint> points{};
  std::vector<ChartSpread> spreads{};     // bars through points
  std::vector<ChartSpread> band{};        // 90 % interval; shaded in HTML pages, not printed
  std::optional<ChartPoint> lone_mark{};  // a value off the line, such as the prefill's peak
  std::optional<ChartPoint> end{};        // a cross: where it ran out of memory
  bool has_marks = true;                  // false: a value that does not depend on x, drawn across
};

/// A horizontal line over the whole width, such as the memory of the GPU.
struct ChartLevel {
  std::string label{};
  double y = 0;
};

/// A vertical line over the whole height: a bound to meet. The legend lists it.
struct ChartPlumb {
  std::string label{};
  double x = 0;
};

/// A labelled place on a line.
struct ChartCallout {
  std::string text;
  ChartPoint at;
  std::optional<std::size_t> line{};  // determines its colour; black if it belongs to several
};

struct LineChart {
  std::string name{}, title{};
  std::string x_label{}, y_label{};
  std::string x_column{}, y_column{};  // in the CSV, with unit
  double y_unit = 1;                   // CSV units per unit of the axis: 2^30 for GiB
  std::string lone_mark_label{};       // "peak of prefill"
  std::string end_label{};             // "out of memory"
  bool log_y_where_wide = false;       // logarithmic if all values are positive and need it
  bool log_x_where_wide = false;       // to base 2, if x doubles from value to value over at least
                                       // a factor of 8
  bool integer_x = true;               // whole-number ticks ("53,912")
  bool log_seconds_x = false;          // x > 0 are seconds; the label gets s, ms or µs
  bool steps = false;  // a value holds up to the next x, the first rises from 0: a CDF
  std::vector<ChartLine> lines{};
  std::vector<ChartLevel> levels{};
  std::vector<ChartPlumb> plumbs{};
  std::vector<ChartCallout> callouts{};
};
[[nodiscard]] Figure draw(const LineChart& chart);

/// The fill of a part of a bar or of a band.
struct Fill {
  std::string_view colour;
  int pattern = 0;    // 0: solid; else gnuplot's hatching of that number on white
  bool dark = false;  // use white text on it
  friend constexpr bool operator==(const Fill&, const Fill&) = default;
};
struct PartStyle {
  std::string_view words;  // in the legend
  Fill fill;
};

/// Parts of a whole by owner over time: stacked bands, the first at the bottom.
struct AreaBand {
  PartStyle style{};
  std::string column{};          // in the CSV, with unit
  std::vector<double> values{};  // one per x
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

/// Marks of one kind, such as a method at several budgets, joined by a thin line in order of x.
struct MarkGroup {
  std::string label{};
  std::vector<ChartPoint> points{};
  bool reference = false;              // not a candidate (such as an oracle), so not part of the
                                       // front
  std::optional<std::size_t> style{};  // index of the line style; default: its index
  bool faint = false;  // small and grey, below the others and without a legend entry
};

/// Marks and their Pareto front: the marks with no other mark below and left of them. Axes are
/// logarithmic if the values need it.
struct ScatterChart {
  std::string name{}, title{};
  std::string x_label{}, y_label{};
  std::string x_column{}, y_column{};  // in the CSV
  double x_scale = 1;                  // the axis shows the CSV's x times this (percent)
  bool log_x = false;                  // x > 0, logarithmic if needed
  std::string faint_label{};           // of all faint groups
  std::string remark{};                // a last entry of the legend, without a mark
  std::vector<MarkGroup> groups{};     // y > 0
};
/// The marks that no other mark dominates (at most as large in x and y and smaller in one), by x.
[[nodiscard]] std::vector<ChartPoint> pareto_front(const std::vector<MarkGroup>& groups);
[[nodiscard]] Figure draw(const ScatterChart& chart);

/// Predicted against measured values on axes of the same range, logarithmic if the values need it,
/// with the line of equality and a band around it.
struct ParityChart {
  std::string name{}, title{};
  std::string x_label{}, y_label{};    // measured, predicted
  std::string x_column{}, y_column{};  // in the CSV
  double band = 0;                     // half the band's width, as a share of the measured value
  std::string band_label{};
  std::vector<MarkGroup> groups{};  // x, y > 0; `reference` and joining lines are ignored
};
[[nodiscard]] Figure draw(const ParityChart& chart);

/// The uncertainty range of a value.
struct ChartRange {
  double low = 0, high = 0;
};

/// One horizontal bar of parts from 0, and a tick at a limit.
struct ChartBar {
  std::string label{};
  std::string detail{};  // under the label
  bool heading = false;  // no bar: the label is a heading of the bars that follow
  std::vector<std::pair<PartStyle, double>> parts{};  // drawn in this order
  std::optional<double> limit{};
  std::optional<double> cut{};       // a longer bar ends here, with a break mark
  std::string end_text{};            // next to the bar's end: one or two lines
  bool inside_numbers = true;        // print each part's number in it if it fits
  std::optional<double> compared{};  // a thinner bar under it for comparison
  std::string compared_text{};
  std::optional<ChartRange> range{};  // a line with caps over the bar
};
struct BarChart {
  std::string name{}, title{};
  std::string x_label{};
  std::string column{};  // in the CSV, with unit
  double unit = 1;
  std::string limit_label{};
  std::string compared_label{};
  std::string range_label{};        // of all ranges
  std::vector<PartStyle> styles{};  // of all parts, in the legend's order
  std::vector<ChartBar> bars{};
};
[[nodiscard]] Figure draw(const BarChart& chart);

/// A value per pair of two keys, as a colour with its number in it. All cells have the same size,
/// regardless of the keys' values.
struct HeatMap {
  std::string name{}, title{};
  std::string x_label{}, y_label{}, z_label{};
  std::string x_column{}, y_column{}, z_column{};            // in the CSV, with unit
  double z_unit = 1;                                         // CSV units per unit of the scale
  std::vector<std::string> x_values{}, y_values{};           // tick texts, in order
  std::vector<std::vector<std::optional<double>>> values{};  // [y][x]; nullopt: a blank cell
};
[[nodiscard]] Figure draw(const HeatMap& map);

}  // namespace kvsim
