// Predicted against measured, as a gnuplot script.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "sim/report/chart.hpp"
#include "sim/report/chart_parts.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/figure_document.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are ours alone

constexpr double kLeft = 104;  // pixels
constexpr double kPlotHeight = 480;
constexpr const char* kFaint = "#b0b0b0";

std::string data_csv(const ParityChart& chart) {
  std::string out = fmt::format("series,{},{},label\n", csv_field(clean_text(chart.x_column)),
                                csv_field(clean_text(chart.y_column)));
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    for (const ChartPoint p : chart.groups[i].points) {
      out += fmt::format("{},{},{},{}\n", i, csv_number(p.x), csv_number(p.y),
                         csv_field(clean_text(chart.groups[i].label)));
    }
  }
  return out;
}

/// Labels at powers of ten, or at 1, 2 and 5 of them where there are few.
std::string ticks(double low, double high) {
  const double decades = std::log10(high / low);
  const int stride = std::max(1, static_cast<int>(std::ceil(decades / 8)));
  std::vector<std::string> out;
  for (int power = static_cast<int>(std::floor(std::log10(low)));
       power <= static_cast<int>(std::ceil(std::log10(high))); ++power) {
    for (const int factor : {1, 2, 5}) {
      const double value = factor * std::pow(10.0, power);
      if (factor != 1 && decades > 3) continue;
      if (power % stride != 0 || value < low * 0.999 || value > high * 1.001) continue;
      out.push_back(fmt::format("'{:g}' {}", value, number(value)));
    }
  }
  return fmt::format("{}", fmt::join(out, ", "));
}

}  // namespace

Figure draw(const ParityChart& chart) {
  double low = INFINITY;
  double high = 0;
  for (const MarkGroup& group : chart.groups) {
    for (const ChartPoint p : group.points) {
      KVSIM_CHECK(p.x > 0 && p.y > 0, "{}, {} on logarithmic axes", p.x, p.y);
      low = std::min({low, p.x, p.y});
      high = std::max({high, p.x, p.y});
    }
  }
  KVSIM_CHECK(high > 0, "figure {} has no mark", chart.name);
  constexpr double kMargin = 1.5;  // of the values' range, at both ends
  low /= kMargin;
  high *= kMargin;
  const std::string labels = ticks(low, high);
  std::string settings = fmt::format(
      "set xlabel {} noenhanced\nset ylabel {} noenhanced\nset logscale xy 10\nset xrange [{}:{}]\n"
      "set yrange [{}:{}]\nset xtics ({})\nset ytics ({})\n",
      gnuplot_quote(chart.x_label), gnuplot_quote(chart.y_label), number(low), number(high),
      number(low), number(high), labels, labels);
  settings += "$line << EOD\n";
  // Many points, each within the axes: a corner outside would be moved along the border, and the
  // band with it.
  constexpr int kPieces = 64;
  for (int i = 0; i <= kPieces; ++i) {
    const double x = low * std::pow(high / low, static_cast<double>(i) / kPieces);
    settings += fmt::format("{},{},{},{}\n", number(x), number(x),
                            number(std::max(low, x * (1 - chart.band))),
                            number(std::min(high, x * (1 + chart.band))));
  }
  settings += "EOD\n";

  std::vector<std::string> clauses;
  std::vector<std::string> entries;
  const auto title = [&](const std::string& style, const std::string& words) {
    entries.push_back(shortened(clean_text(words), kLongestEntry));
    clauses.push_back(
        fmt::format("NaN with {} title {} noenhanced", style, gnuplot_quote(entries.back())));
  };
  if (chart.band > 0) {
    clauses.emplace_back("$line using 1:3:4 with filledcurves fc rgb '#e8e8e8' notitle");
  }
  clauses.emplace_back("$line using 1:2 with lines lw 1 lc rgb '#555555' notitle");
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const auto marks = [&](std::size_t series, const std::string& style) {
    clauses.push_back(
        fmt::format("{} skip 1 using ($1=={}?$2:NaN):3 with {} notitle", file, series, style));
  };
  bool any_faint = false;
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    if (!chart.groups[i].faint) continue;
    any_faint = true;
    marks(i, fmt::format("points pt 7 ps 0.7*spot lc rgb '{}'", kFaint));
  }
  std::size_t style_at = 0;
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    if (chart.groups[i].faint) continue;
    const LineStyle style = line_style(style_at++);
    marks(i, fmt::format("points pt {} ps spot lc rgb '{}'", style.open_mark, style.colour));
    title(fmt::format("points pt {} ps mark lc rgb '{}'", style.open_mark, style.colour),
          chart.groups[i].label);
  }
  if (any_faint) title(fmt::format("points pt 7 ps mark lc rgb '{}'", kFaint), "others");
  title("lines lw 1 lc rgb '#555555'",
        "predicted = " + chart.x_column.substr(0, chart.x_column.find('_')));
  if (chart.band > 0) title("lines lw 10 lc rgb '#e8e8e8'", chart.band_label);
  Figure figure{chart.name, clean_text(chart.title), data_csv(chart),
                script(chart.name, chart.title, {kLeft, kPlotHeight, entries}, settings,
                       fmt::format("plot {}", fmt::join(clauses, ", \\\n     ")))};
  figure.chart = chart_json(chart);
  return figure;
}

}  // namespace kvsim
