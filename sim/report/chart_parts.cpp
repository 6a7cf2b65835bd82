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
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * 0.999) {
      step = factor * power;
      break;
    }
  }
  return {std::floor(low / step) * step, step, std::ceil(high / step) * step};
}

double text_pixels(std::string_view text) {
  return kCharWidth * static_cast<double>(display_width(text));
}

std::string number(double value) { return csv_number(value); }

std::vector<std::string> title_lines(const std::string& title) {
  constexpr auto kColumns = static_cast<std::size_t>((kWidth - 40) / kCharWidth);
  return wrapped(clean_text(title), kColumns);
}

int legend_rows(const std::vector<std::string>& entries) {
  if (entries.empty()) return 0;
  double widest = 0;
  for (const std::string& entry : entries) widest = std::max(widest, text_pixels(entry));
  constexpr double kSample = 70;
  const int columns = std::max(1, static_cast<int>((kWidth - 60) / (widest + kSample)));
  return (static_cast<int>(entries.size()) + columns - 1) / columns;
}

std::string script(const std::string& name, const std::string& title, int height,
                   const std::string& settings, const std::string& plot) {
  std::string broken;  // line ends are lost in single quotes, so lines are joined by an expression
  for (const std::string& line : title_lines(title)) {
    broken += (broken.empty() ? "" : ".\"\\n\".") + gnuplot_quote(line);
  }
  if (broken.empty()) broken = "''";
  std::string out = fmt::format(
      "# Drawn by kvsim; `gnuplot {}.gp` in this folder draws it again.\n"
      "reset session\n"
      "set encoding utf8\n"
      "set datafile separator ','\n"
      "set datafile commentschars ''\n"
      "set title {} noenhanced\n"
      "set border 3 lw 1.2 lc rgb '#333333'\n"
      "set tics nomirror out\n"
      "set grid lc rgb '#dddddd' lw 1 lt 1 dt solid\n"
      "set key bmargin center horizontal Left reverse samplen 3 spacing 1.1 noenhanced\n"
      "{}",
      name, broken, settings);
  const std::string font = fmt::format("'DejaVu Sans,{}'", kFont);
  out += fmt::format(
      "set terminal svg size {0},{1} noenhanced font {2} background '#ffffff' linewidth 1.3 "
      "dashlength 0.4\n"
      "set output '{3}.svg'\n{4}\nunset output\n"
      "if (strstrt(GPVAL_TERMINALS, 'pngcairo') > 0) {{\n"
      "  set terminal pngcairo size {5},{6} noenhanced font {2} fontscale {7} linewidth {8} "
      "pointscale {9} dashlength 0.4 background '#ffffff'\n"
      "}} else {{\n"
      "  set terminal png size {5},{6} noenhanced font {2} fontscale {7} linewidth {8}\n"
      "}}\n"
      "set output '{3}.png'\nreplot\nunset output\n",
      kWidth, height, font, name, plot, kWidth * kPngScale, height * kPngScale, kPngScale,
      1.3 * kPngScale, kPngScale);
  return out;
}

}  // namespace kvsim::chart
