// Marks and their Pareto front, as a gnuplot script.

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>
#include <utility>

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

constexpr double kPlotHeight = 360;
constexpr const char* kFaint = "#b0b0b0";

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

namespace {

/// An axis for values from `low` to `high`, in its units.
struct Axis {
  double low = 0, high = 1;
  bool log = false;

  [[nodiscard]] double share(double value) const {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
  [[nodiscard]] std::vector<Tick> ticks(double pixels, Direction direction) const {
    return log ? log_ticks(low, high, pixels, direction)
               : linear_ticks(low, high, pixels, direction);
  }
};
Axis axis_over(double low, double high, bool log) {
  constexpr double kLogMargin = 1.25;  // times the values' range, at both ends
  constexpr double kMargin = 0.06;
  if (log) return {low / kLogMargin, high * kLogMargin, true};
  // From zero, unless the values would then fill only a corner.
  constexpr double kFarFromZero = 0.5;
  const double span = high > low ? high - low : std::max(std::abs(high), 1e-300);
  const double from = low >= 0 && low < kFarFromZero * high ? 0 : low - kMargin * span;
  return {from, high + kMargin * span, false};
}

std::string script_of(const ScatterChart& chart, const FigureStyle& style) {
  const Canvas canvas = canvas_of(style);
  const std::vector<ChartPoint> front = pareto_front(chart.groups);
  double left = INFINITY, right = -INFINITY, low = INFINITY, high = -INFINITY;
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
  const Axis x = axis_over(left, right, chart.log_x && needs_log(left, right));
  const Axis y = axis_over(low, high, needs_log(low, high));
  Layout layout{.height = kPlotHeight, .x_label = chart.x_label, .y_label = chart.y_label};
  const std::vector<Tick> y_ticks = y.ticks(layout.height, Direction::kUp);
  layout.left = kTicks + widest(y_ticks);
  const double width = canvas.plot_width(left_of_plot(layout));
  std::string settings =
      fmt::format("set xrange [{}:{}]\nset yrange [{}:{}]\n{}{}set xtics {}\nset ytics {}\n",
                  number(x.low), number(x.high), number(y.low), number(y.high),
                  x.log ? "set logscale x\n" : "", y.log ? "set logscale y\n" : "",
                  tick_list(x.ticks(width, Direction::kAcross)), tick_list(y_ticks));
  settings += "$front << EOD\n";
  for (const ChartPoint p : front) settings += fmt::format("{},{}\n", number(p.x), number(p.y));
  // Extended to the right edge: more bytes allow at most this error.
  if (!front.empty()) {
    settings += fmt::format("{},{}\n", number(x.high / chart.x_scale), number(front.back().y));
  }
  settings += "EOD\n";
  std::vector<std::vector<ChartPoint>> points;
  for (const MarkGroup& group : chart.groups) {
    points.push_back(group.faint ? std::vector<ChartPoint>{} : group.points);
  }
  std::vector<NestedMark> marks = nested(points, [&](ChartPoint p) {
    return std::pair{x.share(p.x * chart.x_scale) * width, y.share(p.y) * layout.height};
  });
  settings += "$marks << EOD\n";
  for (const NestedMark& mark : marks) {
    settings +=
        fmt::format("{},{},{},{}\n", mark.series, mark.ring, number(mark.at.x), number(mark.at.y));
  }
  settings += "EOD\n";

  PlotClauses clauses{layout, canvas};
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const auto from_csv = [&](std::size_t series, const std::string& how) {
    clauses.add(fmt::format("{} skip 1 using ($1=={}?$2*{}:NaN):3 with {} notitle", file, series,
                            number(chart.x_scale), how));
  };
  if (!front.empty())
    clauses.add(
        fmt::format("$front using ($1*{}):2 with steps lw 2 dt (8,5) lc rgb '#777777' notitle",
                    number(chart.x_scale)));
  bool any_faint = false;
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    if (!chart.groups[i].faint) continue;
    any_faint = true;
    from_csv(i, fmt::format("points pt 7 ps 0.6*spot lc rgb '{}'", kFaint));
  }
  std::size_t style_at = 0;
  for (std::size_t i = 0; i < chart.groups.size(); ++i) {
    if (chart.groups[i].faint) continue;
    const LineStyle line = line_style(chart.groups[i].style.value_or(style_at++));
    from_csv(i, fmt::format("lines lw 1 dt {} lc rgb '{}'", line.dash, line.colour));
    std::set<std::size_t, std::greater<>> rings;
    for (const NestedMark& mark : marks) {
      if (mark.series == i) rings.insert(mark.ring);
    }
    for (const std::size_t ring : rings) {
      clauses.add(fmt::format(
          "$marks using ($1=={}&&$2=={}?$3*{}:NaN):4 with points pt {} ps {}*spot{} lc rgb '{}' "
          "notitle",
          i, ring, number(chart.x_scale), ring == 0 ? line.mark : line.open_mark,
          number(1.3 * ring_size(ring)), ring == 0 ? "" : " lw 2", line.colour));
    }
    clauses.add_entry(fmt::format("linespoints lw 1 dt {} lc rgb '{}' pt {} ps mark", line.dash,
                                  line.colour, line.mark),
                      chart.groups[i].label);
  }
  if (any_faint) {
    clauses.add_entry(fmt::format("points pt 7 ps mark lc rgb '{}'", kFaint), chart.faint_label);
  }
  if (!front.empty()) clauses.add_entry("lines lw 2 dt (8,5) lc rgb '#777777'", "Pareto front");
  clauses.add_remark(chart.remark);
  return script(chart.name, chart.title, layout, settings, clauses.str(), style);
}

}  // namespace

Figure draw(const ScatterChart& chart) {
  return figure_of(chart, data_csv(chart, pareto_front(chart.groups)), script_of);
}

}  // namespace kvsim
