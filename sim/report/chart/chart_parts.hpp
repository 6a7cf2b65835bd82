#pragma once

// Sizes, colours and scales that all kinds of chart share.

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

// A figure is laid out in pixels of which text takes 16. On a screen a pixel is 1/96 inch; the PNG
// has three times the resolution. On paper 16 pixels are 8 points, so that 3.3 inches are 475.
inline constexpr int kFont = 16;
inline constexpr int kPngScale = 3;
inline constexpr double kLineHeight = 21;
inline constexpr double kEdge = 10;         // white at the sides of the canvas
inline constexpr double kRightMargin = 30;  // half a tick label is right of the plot
inline constexpr double kTicks = 20;        // ticks of a vertical axis, without their names

/// What a figure is laid out on.
struct Canvas {
  double width = 720;  // pixels
  bool has_title = true;
  [[nodiscard]] constexpr double plot_width(double left, double right = kRightMargin) const {
    return width - left - right;
  }
};
[[nodiscard]] Canvas canvas_of(const FigureStyle& style);

/// Without the yellow, which is lost on white.
inline constexpr std::array<std::string_view, 7> kLineColours{
    "#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9"};
inline constexpr std::array<std::string_view, 5> kDashes{"solid", "(14,5)", "(3,4)", "(14,4,3,4)",
                                                         "(7,3)"};
inline constexpr std::array<int, 6> kMarks{7, 5, 9, 13, 11, 15};

/// How the `i`-th line is drawn: no two of the first 210 are equal, and of any two of the first 30
/// at least two of colour, dash and mark differ.
struct LineStyle {
  std::string_view colour;
  std::string_view dash;
  int mark;       // filled
  int open_mark;  // of the same shape
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

/// A place on an axis and what it is called there.
struct Tick {
  double at = 0;
  std::string words{};
};
/// Which way an axis runs: names of places on a horizontal one take their width.
enum class Direction { kAcross, kUp };
/// Ticks on round values, as many as have room on `pixels`.
[[nodiscard]] std::vector<Tick> linear_ticks(double low, double high, double pixels, Direction);
/// The same of a logarithmic axis; to base 2, doublings of a value.
[[nodiscard]] std::vector<Tick> log_ticks(double low, double high, double pixels, Direction);
[[nodiscard]] std::vector<Tick> doubling_ticks(double low, double high, double pixels);
/// Those on whole numbers, named without decimals.
[[nodiscard]] std::vector<Tick> whole_ticks(std::vector<Tick> ticks);
/// "('10' 10, '20' 20)", for `set xtics`.
[[nodiscard]] std::string tick_list(const std::vector<Tick>& ticks);
/// Pixels that the widest takes.
[[nodiscard]] double widest(const std::vector<Tick>& ticks);

/// A value on an axis or in a cell: "53,912", "0.05", "2e-5".
[[nodiscard]] std::string axis_number(double value);

/// Whether values span so much that a linear axis would hide the small ones. `low` > 0.
[[nodiscard]] bool needs_log(double low, double high);

/// Whether values span 8 times in steps of about 2 or less. Over longer steps a straight line would
/// look bent.
[[nodiscard]] bool goes_by_doublings(const std::set<double>& values);

/// Pixels that `text` takes at kFont in DejaVu Sans.
[[nodiscard]] double text_pixels(std::string_view text);
/// At most `pixels` of `text`, cleaned: its end gives way to "…".
[[nodiscard]] std::string fitted(std::string_view text, double pixels);
/// `text`, cleaned, in lines of at most `pixels`, broken at blanks.
[[nodiscard]] std::vector<std::string> lines_within(std::string_view text, double pixels);
/// A text of several lines, quoted for gnuplot.
[[nodiscard]] std::string quoted_lines(const std::vector<std::string>& lines);

/// A number for a gnuplot script: shortest digits that read back the same.
[[nodiscard]] std::string number(double value);

/// Marks that would hide each other. The first of them is drawn plain, the others hollow and larger
/// by ring.
struct NestedMark {
  std::size_t series = 0;
  std::size_t index = 0;  // of the point in its series
  ChartPoint at{};        // data
  std::size_t ring = 0;   // 0: nothing is within it
};
/// `points`: of each series in data, `place` maps them to pixels. Marks stay at their points. Where
/// more than 5 series meet in a point it has marks of 5 of them, other points of others.
[[nodiscard]] std::vector<NestedMark> nested(
    const std::vector<std::vector<ChartPoint>>& points,
    const std::function<std::pair<double, double>(ChartPoint)>& place);
/// The size of a mark, in multiples of a single one.
[[nodiscard]] double ring_size(std::size_t ring);

/// Where parts of a figure are on the canvas, in pixels. Margins are given: gnuplot's own guesses
/// differ between its terminals.
struct Layout {
  double left = 0;    // of the plot's remaining width without the axis's name, which gets separate
                      // room
  double height = 0;  // of the plot
  std::vector<std::string> legend{};
  std::string x_label{}, y_label{};
  double right = kRightMargin;
};
/// From the canvas's edge to the plot, the axis's name included.
[[nodiscard]] double left_of_plot(const Layout& layout);

/// Clauses of a `plot` command, with entries of the legend. A text that is longer than the canvas
/// takes several entries, of which the first has the sample.
class PlotClauses {
 public:
  PlotClauses(Layout& layout, const Canvas& canvas) : layout_{layout}, canvas_{canvas} {}
  void add(std::string clause) { clauses_.push_back(std::move(clause)); }
  /// "CLAUSE title 'TEXT' noenhanced".
  void add(const std::string& clause, std::string_view text);
  /// Only the entry: "NaN with HOW title 'TEXT' noenhanced".
  void add_entry(const std::string& how, std::string_view text);
  void add_remark(std::string_view text);
  /// "plot CLAUSE, …".
  [[nodiscard]] std::string str() const;

 private:
  Layout& layout_;
  const Canvas& canvas_;
  std::vector<std::string> clauses_;
};

/// A whole script: what all charts have in common (encoding, title, axes' names, legend below,
/// fonts), then `settings`, then `plot`, drawn in every format of `style`. `plot` gives sizes of
/// marks in multiples of a variable of the terminal's: `mark` in the legend, `spot` on lines,
/// `sign` for crosses and open marks.
[[nodiscard]] std::string script(const std::string& name, const std::string& title,
                                 const Layout& layout, const std::string& settings,
                                 const std::string& plot, const FigureStyle& style);

}  // namespace kvsim::chart
