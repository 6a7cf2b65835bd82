#pragma once

// Sizes, colours and scales that both kinds of chart share.

#include <array>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim::chart {

// A figure is laid out in SVG pixels of 1/96 inch: 720 are 7.5 inches, which print on a page's 6.9
// with 16-pixel text at 11 points. The PNG is the same at three times the resolution.
inline constexpr int kWidth = 720;
inline constexpr int kFont = 16;
inline constexpr int kPngScale = 3;
inline constexpr double kCharWidth = 9.2;  // of DejaVu Sans at kFont, mean over text like ours
inline constexpr double kLineHeight = 21;
inline constexpr double kRightMargin = 30;  // half a tick label stands out of the plot

/// Without the yellow, which is lost on white.
inline constexpr std::array<std::string_view, 7> kLineColours{
    "#0072B2", "#D55E00", "#009E73", "#000000", "#CC79A7", "#E69F00", "#56B4E9"};
inline constexpr std::array<std::string_view, 5> kDashes{"solid", "(14,5)", "(3,4)", "(14,4,3,4)",
                                                         "(7,3)"};
inline constexpr std::array<int, 6> kMarks{7, 5, 9, 13, 11, 15};

/// How the `i`-th line is drawn: no two of the first 210 alike, and of any two of the first 30 at
/// least two of colour, dash and mark differ.
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

/// Settings of a logarithmic x axis of seconds, "10 ms", "20 ms", …: powers of ten, and twice and
/// five times them where `pixels` have room.
[[nodiscard]] std::string second_ticks(double low, double high, double pixels);

/// Whether values span 8 times in steps of about 2 or less. Over longer steps what is linear would
/// look bent.
[[nodiscard]] bool goes_by_doublings(const std::set<double>& values);

/// Pixels that `text` takes at kFont.
[[nodiscard]] double text_pixels(std::string_view text);

/// A number for a gnuplot script: shortest digits that read back the same.
[[nodiscard]] std::string number(double value);

/// Where things stand on the canvas, in pixels. Margins are said outright: gnuplot's own guesses
/// differ between its terminals.
struct Layout {
  double left = 0;                  // of the plot: room for tick labels and the axis's name
  double height = 0;                // of the plot
  std::vector<std::string> legend;  // entries, for the room they take
};
[[nodiscard]] constexpr double plot_width(double left) { return kWidth - left - kRightMargin; }

/// A whole script: what all charts have in common (encoding, title, legend below, fonts), then
/// `settings`, then `plot`, drawn as SVG and again as PNG. `plot` gives sizes of marks in multiples
/// of a variable of the terminal's: `mark` in the legend, `spot` on lines, `sign` for crosses and
/// open marks.
[[nodiscard]] std::string script(const std::string& name, const std::string& title,
                                 const Layout& layout, const std::string& settings,
                                 const std::string& plot);

/// How many lines of the canvas's width a title takes, and its text so broken.
[[nodiscard]] std::vector<std::string> title_lines(const std::string& title);

/// Longest text of a legend entry, in columns.
inline constexpr std::size_t kLongestEntry = 54;

}  // namespace kvsim::chart
