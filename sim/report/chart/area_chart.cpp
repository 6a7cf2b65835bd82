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

constexpr double kHeight = 340;

std::string data_csv(const AreaChart& chart) {
  std::string out = csv_field(clean_text(chart.x_column));
  for (const AreaBand& band : chart.bands)
    out.append(",").append(csv_field(clean_text(band.column)));
  out += "\n";
  for (std::size_t i = 0; i < chart.x.size(); ++i) {
    out += csv_number(chart.x[i]);
    for (const AreaBand& band : chart.bands) out.append(",").append(csv_number(band.values[i]));
    out += "\n";
  }
  return out;
}

/// The sum of the first `n` bands as a gnuplot expression over the CSV.
std::string sum_of(std::size_t n, double unit) {
  if (n == 0) return "(0)";
  std::vector<std::string> columns;
  for (std::size_t i = 0; i < n; ++i) columns.push_back(fmt::format("${}", i + 2));
  return fmt::format("(({})/{})", fmt::join(columns, "+"), number(unit));
}

std::string script_of(const AreaChart& chart, const FigureStyle& style) {
  const Canvas canvas = canvas_of(style);
  double high = 0;
  for (std::size_t i = 0; i < chart.x.size(); ++i) {
    double sum = 0;
    for (const AreaBand& band : chart.bands) {
      KVSIM_CHECK(band.values.size() == chart.x.size(), "a band of {} values over {} places",
                  band.values.size(), chart.x.size());
      sum += band.values[i];
    }
    high = std::max(high, sum / chart.y_unit);
  }
  for (const ChartLevel& level : chart.levels) high = std::max(high, level.y / chart.y_unit);
  const double low_x = chart.x.empty() ? 0 : chart.x.front();
  double high_x = chart.x.empty() ? 1 : chart.x.back();
  if (!(high_x > low_x)) high_x = low_x + 1;
  const double top = high > 0 ? 1.04 * high : 1;
  Layout layout{.height = kHeight, .x_label = chart.x_label, .y_label = chart.y_label};
  const std::vector<Tick> y_ticks = linear_ticks(0, top, kHeight, Direction::kUp);
  layout.left = kTicks + widest(y_ticks);
  const double width = canvas.plot_width(left_of_plot(layout));
  std::string settings = fmt::format(
      "set xrange [{}:{}]\nset yrange [0:{}]\nset xtics {}\nset ytics {}\nset grid front\n",
      number(low_x), number(high_x), number(top),
      tick_list(linear_ticks(low_x, high_x, width, Direction::kAcross)), tick_list(y_ticks));
  PlotClauses clauses{layout, canvas};
  const std::string file = gnuplot_quote(chart.name + ".csv");
  // The legend lists the uppermost band first, in the visual order.
  for (std::size_t k = chart.bands.size(); k-- > 0;) {
    const AreaBand& band = chart.bands[k];
    const bool any =
        std::any_of(band.values.begin(), band.values.end(), [](double value) { return value > 0; });
    if (!any) continue;
    const Fill& fill = band.style.fill;
    const std::string filled =
        fill.pattern > 0 ? fmt::format("pattern {}", fill.pattern) : "solid 1.0";
    clauses.add(fmt::format(
        "{} skip 1 using 1:{}:{} with filledcurves fs {} noborder lc rgb '{}' notitle", file,
        sum_of(k, chart.y_unit), sum_of(k + 1, chart.y_unit), filled, fill.colour));
    // With a border, because a white sample on white is invisible.
    clauses.add_entry(
        fmt::format("boxes fs {} border rgb '#222222' lc rgb '{}'", filled, fill.colour),
        band.style.words);
  }
  for (std::size_t k = 0; k < chart.bands.size(); ++k) {
    clauses.add(
        fmt::format("{} skip 1 using 1:{} with lines lw 0.8 dt solid lc rgb '#222222' notitle",
                    file, sum_of(k + 1, chart.y_unit)));
  }
  for (const ChartLevel& level : chart.levels) {
    settings += fmt::format(
        "set arrow from graph 0, first {0} to graph 1, first {0} nohead lw 2 dt (10,4) lc rgb "
        "'#000000' front\n",
        number(level.y / chart.y_unit));
    clauses.add_entry("lines lw 2 dt (10,4) lc rgb '#000000'", level.label);
  }
  return script(chart.name, chart.title, layout, settings, clauses.str(), style);
}

}  // namespace

Figure draw(const AreaChart& chart) { return figure_of(chart, data_csv(chart), script_of); }

}  // namespace kvsim
