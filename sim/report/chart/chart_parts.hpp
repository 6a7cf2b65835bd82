#pragma once

// Sizes, colours and scales that all kinds of charts share.

#include <array>
#include <cstddef>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sim/report/chart/chart.hpp"
#include "sim/report/figure/figure_style.hpp"

namespace kvsim::chart {

// A figure is laid out in pixels with 16-pixel text. On a screen a pixel is 1/96 inch; the PNG has
// three times the resolution. On paper 16 pixels are 8 points, so that 3.3 inches are 475 pixels.
inline constexpr int kFont = 16;
inline constexpr int kPngScale = 3;
inline constexpr double kLineHeight = 21;
inline constexpr double kEdge = 10;         // white at the sides of the canvas
inline constexpr double kRightMargin = 30;  // for half a tick label that extends past the plot
inline constexpr double kTicks = 20;        // ticks of a vertical axis, without their names

/// The area that a figure is laid out on.
struct Canvas {
  double width = 720;  // pixels
  bool has_title = true;
  [[nodiscard]] constexpr double plot_width(double left, double right = kRightMargin) const {
    return width - left - right;
  }
};
[[nodiscard]] Canvas canvas_of(const FigureStyle& style);

/// Without yellow, which is hard to see on white.
inline constexpr std::array<std::string_view, 7> kLineColours{
    "#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9"};
inline constexpr std::array<std::string_view, 5> kDashes{"solid", "(14,5)", "(3,4)", "(14,4,3,4)",
                                                         "(7,3)"};
inline constexpr std::array<int, 6> kMarks{7, 5, 9, 13, 11, 15};

/// The style of the `i`-th line. The first 210 styles are all different. Any two of the first 30
/// differ in at least two of colour, dash and mark.
struct LineStyle {
  std::string_view colour;
  std::string_view dash;
  int mark;       // filled
  int open_mark;  // the hollow variant of the same shape
};
[[nodiscard]] constexpr LineStyle line_style(std::size_t i) {
  const int mark = kMarks[i % kMarks.size()];
  return {kLineColours[i % kLineColours.size()], kDashes[i % kDashes.size()], mark, mark - 1};
}

/// Round steps from at most `low` to at least `high`, about `wanted` of them.
struct Ticks {
  double first = 0, step = 1, last = 1;
};
[[nodiscard]] Ticks ticks_over(double low, double high, int wanted);

/// A position on an axis and its label.
struct Tick {
  double at = 0;
  std::string words{};
};
/// The direction of an axis: on a horizontal axis, labels need their width.
enum class Direction { kAcross, kUp };
/// Ticks at round values, as many as fit in `pixels`.
[[nodiscard]] std::vector<Tick> linear_ticks(double low, double high, double pixels, Direction);
/// The same for a logarithmic axis; base 2 gives doublings of a value.
[[nodiscard]] std::vector<Tick> log_ticks(double low, double high, double pixels, Direction);
[[nodiscard]] std::vector<Tick> doubling_ticks(double low, double high, double pixels);
/// The ticks at whole numbers, labelled without decimals.
[[nodiscard]] std::vector<Tick> whole_ticks(std::vector<Tick> ticks);
/// "('10' 10, '20' 20)", for `set xtics`.
[[nodiscard]] std::string tick_list(const std::vector<Tick>& ticks);
/// The width of the widest label in pixels.
[[nodiscard]] double widest(const std::vector<Tick>& ticks);

/// A value on an axis or in a cell: "53,912", "0.05", "2e-5".
[[nodiscard]] std::string axis_number(double value);

/// Whether the range is so wide that a linear axis would hide the small values. `low` > 0.
[[nodiscard]] bool needs_log(double low, double high);

/// Whether values span a factor of 8 in steps of about 2 or less. With longer steps a straight line
/// would look bent.
[[nodiscard]] bool is_log_spaced(const std::set<double>& values);

/// The width of `text` in pixels at kFont in DejaVu Sans.
[[nodiscard]] double text_pixels(std::string_view text);
/// `text`, cleaned and cut to `pixels`; "…" replaces the end.
[[nodiscard]] std::string fitted(std::string_view text, double pixels);
/// `text`, cleaned, in lines of at most `pixels`, broken at spaces.
[[nodiscard]] std::vector<std::string> lines_within(std::string_view text, double pixels);
/// A text of several lines, quoted for gnuplot.
[[nodiscard]] std::string quoted_lines(const std::vector<std::string>& lines);

/// A number for a gnuplot script: the shortest digits that parse back to the same value.
[[nodiscard]] std::string number(double value);

/// Marks that would hide each other. The first one is drawn plain; the others are hollow and larger
/// by ring.
struct NestedMark {
  std::size_t series = 0;
  std::size_t index = 0;  // of the point in its series
  ChartPoint at{};        // in data units
  std::size_t ring = 0;   // 0: no mark is within it
};
/// `points`: of each series, in data units; `place` maps them to pixels. Marks stay at their
/// points. If more than 5 series meet at a point, 5 of them have marks there; the others have marks
/// at other points.
[[nodiscard]] std::vector<NestedMark> nested(
    const std::vector<std::vector<ChartPoint>>& points,
    const std::function<std::pair<double, double>(ChartPoint)>& place);
/// The size of a mark, as a multiple of a single one.
[[nodiscard]] double ring_size(std::size_t ring);

/// Positions of a figure's parts on the canvas, in pixels. Margins are explicit: gnuplot's defaults
/// differ between terminals.
struct Layout {
  double left = 0;    // of the plot, without the axis's name, which gets separate space
  double height = 0;  // of the plot
  std::vector<std::string> legend{};
  std::string x_label{}, y_label{};
  double right = kRightMargin;
};
/// From the canvas's edge to the plot, including the axis's name.
[[nodiscard]] double left_of_plot(const Layout& layout);

/// Clauses of a `plot` command with their legend entries. A text that is longer than the canvas
/// takes several entries; the first has the sample.
class PlotClauses {
 public:
  PlotClauses(Layout& layout, const Canvas& canvas) : layout_{layout}, canvas_{canvas} {}
  void add(std::string clause) { clauses_.push_back(std::move(clause)); }
  /// "CLAUSE title 'TEXT' noenhanced".
  void add(const std::string& clause, std::string_view text);
  /// Adds only a legend entry: "NaN with HOW title 'TEXT' noenhanced".
  void add_entry(const std::string& how, std::string_view text);
  void add_remark(std::string_view text);
  /// "plot CLAUSE, …".
  [[nodiscard]] std::string str() const;

 private:
  Layout& layout_;
  const Canvas& canvas_;
  std::vector<std::string> clauses_;
};

/// A whole script: the settings that all charts share (encoding, title, axis names, legend below,
/// fonts), then `settings`, then `plot`, drawn in every format of `style`. `plot` gives mark sizes
/// as multiples of a terminal-specific variable: `mark` in the legend, `spot` on lines, `sign` for
/// crosses and open marks.
[[nodiscard]] std::string script(const std::string& name, const std::string& title,
                                 const Layout& layout, const std::string& settings,
                                 const std::string& plot, const FigureStyle& style);

}  // namespace kvsim::chart
