#include "sim/report/chart_parts.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "sim/report/csv.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/text.hpp"

namespace kvsim::chart {

Ticks ticks_over(double low, double high, int wanted) {
  const double span = high > low ? high - low : std::max(std::abs(high), 1.0);
  const double rough = span / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  }
  return {std::floor(low / step) * step, step, std::ceil(high / step) * step};
}

namespace {

/// "20 ms" of 0.02.
std::string time_word(double seconds) {
  if (seconds < 0.9995e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  if (seconds < 0.9995) return fmt::format("{:.3g} ms", seconds * 1e3);
  return with_commas(std::llround(seconds)) + " s";
}

}  // namespace

std::string second_ticks(double low, double high, double pixels) {
  constexpr double kRoom = 72;  // pixels that "300 ms" takes, and clear of the next
  const double decade = pixels / std::log10(high / low);
  std::vector<double> factors{1};
  if (decade * std::log10(2.0) > kRoom) {
    factors = {1, 2, 5};
  } else if (decade * std::log10(3.0) > kRoom) {
    factors = {1, 3};
  }
  std::string out;
  for (int power = -9; power < 9; ++power) {
    for (const double factor : factors) {
      const double x = factor * std::pow(10.0, power);
      if (x < low || x > high) continue;
      out += fmt::format("{}'{}' {}", out.empty() ? "" : ", ", time_word(x), number(x));
    }
  }
  return fmt::format("set logscale x 10\nset xtics ({})\n", out);
}

bool goes_by_doublings(const std::set<double>& values) {
  constexpr double kWide = 8, kLongestStep = 2.2;
  if (values.empty() || *values.begin() <= 0) return false;
  double before = *values.begin();
  for (const double value : values) {
    if (value > kLongestStep * before) return false;
    before = value;
  }
  return *values.rbegin() >= kWide * *values.begin();
}

double text_pixels(std::string_view text) {
  return kCharWidth * static_cast<double>(display_width(text));
}

std::string number(double value) { return csv_number(value); }

std::vector<std::string> title_lines(const std::string& title) {
  constexpr auto kColumns = static_cast<std::size_t>((kWidth - 40) / kCharWidth);
  return wrapped(clean_text(title), kColumns);
}

namespace {

constexpr double kCanvasEdge = 10;  // white at the sides of the legend

/// Columns of the legend below a plot; its entries stand in a grid as wide as the canvas.
int legend_columns(const Layout& layout) {
  constexpr double kSample = 75;            // line and mark before an entry
  constexpr double kWideCharacters = 1.08;  // gnuplot reckons texts wider than they come out
  double widest = 0;
  for (const std::string& entry : layout.legend) widest = std::max(widest, text_pixels(entry));
  const double fit = (kWidth - 2 * kCanvasEdge) / (widest * kWideCharacters + kSample);
  return std::clamp(static_cast<int>(fit), 1, 4);
}

}  // namespace

std::string script(const std::string& name, const std::string& title, const Layout& layout,
                   const std::string& settings, const std::string& plot) {
  constexpr double kTopGap = 14;
  constexpr double kLegendRow = 1.1 * kLineHeight;
  constexpr double kAxisText = 66;  // tick labels and the axis's name
  const std::vector<std::string> lines = title_lines(title);
  const int columns = legend_columns(layout);
  const int rows = (static_cast<int>(layout.legend.size()) + columns - 1) / columns;
  const double top = kTopGap + 16 + kLineHeight * static_cast<double>(lines.size());
  const double bottom = kAxisText + 12 + kLegendRow * rows;
  const int height = static_cast<int>(std::lround(top + layout.height + bottom));
  std::string out = fmt::format(
      "# Drawn by kvsim; `gnuplot {}.gp` in this folder draws it again.\n"
      "reset session\n"
      "set encoding utf8\n"
      "set datafile separator ','\n"
      "set datafile commentschars ''\n"
      "set border 3 lw 1.2 lc rgb '#333333'\n"
      "set tics nomirror out\n"
      "set grid lc rgb '#dddddd' lw 1 lt 1 dt solid\n"
      "set key at screen 0.5, screen {} center bottom vertical maxrows {} Left reverse samplen 3 "
      "noenhanced\n"
      "set lmargin at screen {}\nset rmargin at screen {}\n"
      "set tmargin at screen {}\nset bmargin at screen {}\n",
      name, number(10.0 / height), std::max(rows, 1), number(layout.left / kWidth),
      number(1 - kRightMargin / kWidth), number(1 - top / height), number(bottom / height));
  // The title is centred on the canvas, whatever the plot's margins.
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const double y = kTopGap + kLineHeight * (static_cast<double>(i) + 0.5);
    out += fmt::format("set label {} at screen 0.5, screen {} center noenhanced\n",
                       gnuplot_quote(lines[i]), number(1 - y / height));
  }
  out += settings;
  const std::string style = fmt::format("noenhanced font 'DejaVu Sans,{}' dashlength 0.6", kFont);
  // The terminals differ in what a character's height and a mark's size are; these even them out.
  // A point of text is 1/72 inch to the PNG and a pixel of 1/96 to the SVG.
  out += fmt::format(
      "set terminal svg size {0},{1} {2} background '#ffffff' linewidth 1.3\n"
      "mark = 0.55; spot = 0.62; sign = 1.05\n"
      "set key spacing 0.87\nset xtics offset 0,0.35\nset xlabel offset 0,0.85\n"
      "set output '{3}.svg'\n{4}\nunset output\n"
      "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) {{\n"
      "  set terminal pngcairo size {5},{6} {2} fontscale {7} linewidth {8} pointscale {9} "
      "background '#ffffff'\n"
      "}} else {{\n"
      "  set terminal png size {5},{6} noenhanced linewidth {8}\n"
      "}}\n"
      "mark = 0.9; spot = 1.26; sign = 1.6\n"
      "set key spacing 1.1\nset xtics offset 0,0\nset xlabel offset 0,0\n"
      "set output '{3}.png'\nreplot\nunset output\n",
      kWidth, height, style, name, plot, kWidth * kPngScale, height * kPngScale,
      number(0.75 * kPngScale), number(1.3 * kPngScale), kPngScale);
  return out;
}

}  // namespace kvsim::chart
