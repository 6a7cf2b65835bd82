// Predicted against measured, as a gnuplot script.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/chart_parts.hpp"
#include "sim/report/chart/drawn_chart.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are internal

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

std::string script_of(const ParityChart& chart, const FigureStyle& style) {
  const Canvas canvas = canvas_of(style);
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
  const bool log = needs_log(low, high);
  if (log) {
    constexpr double kMargin = 1.5;  // at both ends
    low /= kMargin;
    high *= kMargin;
  } else {
    constexpr double kMargin = 0.06;  // of the range
    const double span = high > low ? high - low : high;
    low = std::max(0.0, low - kMargin * span);
    high += kMargin * span;
  }
  const auto ticks = [&](double pixels, Direction direction) {
    return log ? log_ticks(low, high, pixels, direction)
               : linear_ticks(low, high, pixels, direction);
  };
  Layout layout{.height = kPlotHeight, .x_label = chart.x_label, .y_label = chart.y_label};
  const std::vector<Tick> y_ticks = ticks(layout.height, Direction::kUp);
  layout.left = kTicks + widest(y_ticks);
  const double width = canvas.plot_width(left_of_plot(layout));
  std::string settings =
      fmt::format("{4}set xrange [{0}:{1}]\nset yrange [{0}:{1}]\nset xtics {2}\nset ytics {3}\n",
                  number(low), number(high), tick_list(ticks(width, Direction::kAcross)),
                  tick_list(y_ticks), log ? "set logscale xy\n" : "");
  settings += "$line << EOD\n";
  // Many points within the axes: a corner outside would be moved along the border and distort the
  // band.
  constexpr int kPieces = 64;
  for (int i = 0; i <= kPieces; ++i) {
    const double share = static_cast<double>(i) / kPieces;
    const double x = log ? low * std::pow(high / low, share) : low + share * (high - low);
    settings += fmt::format("{},{},{},{}\n", number(x), number(x),
                            number(std::max(low, x * (1 - chart.band))),
                            number(std::min(high, x * (1 + chart.band))));
  }
  settings += "EOD\n";

  PlotClauses clauses{layout, canvas};
  if (chart.band > 0) {
    clauses.add("$line using 1:3:4 with filledcurves fc rgb '#e8e8e8' notitle");
  }
  clauses.add("$line using 1:2 with lines lw 1 lc rgb '#555555' notitle");
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const auto marks = [&](std::size_t series, const std::string& how) {
    clauses.add(
        fmt::format("{} skip 1 using ($1=={}?$2:NaN):3 with {} notitle", file, series, how));
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
    const LineStyle line = line_style(style_at++);
    marks(i, fmt::format("points pt {} ps spot lc rgb '{}'", line.open_mark, line.colour));
    clauses.add_entry(fmt::format("points pt {} ps mark lc rgb '{}'", line.open_mark, line.colour),
                      chart.groups[i].label);
  }
  if (any_faint)
    clauses.add_entry(fmt::format("points pt 7 ps mark lc rgb '{}'", kFaint), "others");
  clauses.add_entry("lines lw 1 lc rgb '#555555'",
                    "predicted = " + chart.x_column.substr(0, chart.x_column.find('_')));
  if (chart.band > 0) clauses.add_entry("lines lw 10 lc rgb '#e8e8e8'", chart.band_label);
  return script(chart.name, chart.title, layout, settings, clauses.str(), style);
}

}  // namespace

Figure draw(const ParityChart& chart) { return figure_of(chart, data_csv(chart), script_of); }

}  // namespace kvsim
