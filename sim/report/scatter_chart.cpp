// Marks over a logarithmic axis and their Pareto front, as a gnuplot script.

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "sim/report/chart.hpp"
#include "sim/report/chart_parts.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/figure_document.hpp"
#include "sim/report/figure_page.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are ours alone

constexpr double kLeft = 104;  // pixels
constexpr double kPlotHeight = 360;
constexpr const char* kFaint = "#b0b0b0";

/// Labels at 1, 2 and 5 of every power of ten, or at 1 alone where there are many powers.
std::string log_ticks(const char* axis, double low, double high) {
  constexpr double kManyDecades = 3;
  const bool few = std::log10(high / low) <= kManyDecades;
  std::vector<std::string> ticks;
  for (int power = static_cast<int>(std::floor(std::log10(low)));
       power <= static_cast<int>(std::ceil(std::log10(high))); ++power) {
    for (const int factor : {1, 2, 5}) {
      const double value = factor * std::pow(10.0, power);
      if ((factor != 1 && !few) || value < low * 0.999 || value > high * 1.001) continue;
      ticks.push_back(fmt::format("'{:g}' {}", value, number(value)));
    }
  }
  return fmt::format("set {}tics ({})\n", axis, fmt::join(ticks, ", "));
}

std::string data_csv(const ScatterChart& chart, const std::vector<ChartPoint>& front) {
  std::string out =
      fmt::format("series,{},{},on_front,label\n", csv_field(clean_text(chart.x_column)),
                  csv_field(clean_text(chart.y_column)));
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    for (const ChartPoint p : chart.groups[i].points) {
      const bool leads = std::any_of(front.begin(), front.end(),
                                     [p](ChartPoint q) { return q.x == p.x && q.y == p.y; });
      out += fmt::format("{},{},{},{},{}\n", i, csv_number(p.x), csv_number(p.y), leads ? 1 : 0,
                         csv_field(clean_text(chart.groups[i].label)));
    }
  }
  return out;
}

}  // namespace

std::vector<ChartPoint> pareto_front(const std::vector<MarkGroup>& groups) {
  std::vector<ChartPoint> all;
  for (const MarkGroup& group : groups) {
    if (group.reference) continue;
    all.insert(all.end(), group.points.begin(), group.points.end());
  }
  std::stable_sort(all.begin(), all.end(),
                   [](ChartPoint a, ChartPoint b) { return a.x != b.x ? a.x < b.x : a.y < b.y; });
  std::vector<ChartPoint> front;
  for (const ChartPoint p : all) {
    if (front.empty() || p.y < front.back().y) front.push_back(p);
  }
  return front;
}

Figure draw(const ScatterChart& chart) {
  const std::vector<ChartPoint> front = pareto_front(chart.groups);
  double left = INFINITY;
  double right = 0;
  double low = INFINITY;
  double high = 0;
  for (const MarkGroup& group : chart.groups) {
    for (const ChartPoint p : group.points) {
      KVSIM_CHECK(p.y > 0, "{} on a logarithmic axis", p.y);
      KVSIM_CHECK(!chart.log_x || p.x > 0, "{} on a logarithmic axis", p.x);
      left = std::min(left, p.x * chart.x_scale);
      right = std::max(right, p.x * chart.x_scale);
      low = std::min(low, p.y);
      high = std::max(high, p.y);
    }
  }
  KVSIM_CHECK(high > 0, "figure {} has no mark", chart.name);
  constexpr double kMargin = 1.25;  // of the values' range, above and below
  constexpr double kBeside = 1.04;
  const double beside = chart.log_x ? kMargin : kBeside;
  low /= kMargin;
  high *= kMargin;
  std::string settings = fmt::format(
      "set xlabel {} noenhanced\nset ylabel {} noenhanced\nset xrange [{}:{}]\nset logscale y "
      "10\nset yrange [{}:{}]\n{}",
      gnuplot_quote(chart.x_label), gnuplot_quote(chart.y_label),
      number(chart.log_x ? left / kMargin : 0), number(right * beside), number(low), number(high),
      log_ticks("y", low, high));
  if (chart.log_x) {
    settings +=
        fmt::format("set logscale x 10\n{}", log_ticks("x", left / kMargin, right * beside));
  }
  settings += "$front << EOD\n";
  for (const ChartPoint p : front) settings += fmt::format("{},{}\n", number(p.x), number(p.y));
  // On to the right edge: whoever has more bytes has this one's error at the most.
  if (!front.empty()) {
    settings +=
        fmt::format("{},{}\n", number(right * beside / chart.x_scale), number(front.back().y));
  }
  settings += "EOD\n";

  std::vector<std::string> clauses;
  std::vector<std::string> entries;
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const auto title = [&](const std::string& style, const std::string& words) {
    entries.push_back(shortened(clean_text(words), kLongestEntry));
    clauses.push_back(
        fmt::format("NaN with {} title {} noenhanced", style, gnuplot_quote(entries.back())));
  };
  const auto marks = [&](std::size_t series, const std::string& style) {
    clauses.push_back(fmt::format("{} skip 1 using ($1=={}?$2*{}:NaN):3 with {} notitle", file,
                                  series, number(chart.x_scale), style));
  };
  if (!front.empty())
    clauses.push_back(
        fmt::format("$front using ($1*{}):2 with steps lw 2 dt (8,5) lc rgb '#777777' notitle",
                    number(chart.x_scale)));
  bool any_faint = false;
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    if (!chart.groups[i].faint) continue;
    any_faint = true;
    marks(i, fmt::format("points pt 7 ps 0.6*spot lc rgb '{}'", kFaint));
  }
  std::size_t style_at = 0;
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    if (chart.groups[i].faint) continue;
    const LineStyle style = line_style(chart.groups[i].style.value_or(style_at++));
    marks(i, fmt::format("lines lw 1 dt {} lc rgb '{}'", style.dash, style.colour));
    marks(i, fmt::format("points pt {} ps 1.3*spot lc rgb '{}'", style.mark, style.colour));
    title(fmt::format("linespoints lw 1 dt {} lc rgb '{}' pt {} ps mark", style.dash, style.colour,
                      style.mark),
          chart.groups[i].label);
  }
  if (any_faint) title(fmt::format("points pt 7 ps mark lc rgb '{}'", kFaint), chart.faint_label);
  if (!front.empty()) title("lines lw 2 dt (8,5) lc rgb '#777777'", "Pareto front");
  if (!chart.remark.empty()) title("dots lc rgb '#ffffff'", chart.remark);
  Figure figure{chart.name, clean_text(chart.title), data_csv(chart, front),
                script(chart.name, chart.title, {kLeft, kPlotHeight, entries}, settings,
                       fmt::format("plot {}", fmt::join(clauses, ", \\\n     ")))};
  figure.page = page_chart(chart);
  figure.chart = chart_json(chart);
  return figure;
}

}  // namespace kvsim
