#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/chart_parts.hpp"
#include "sim/report/chart/drawn_chart.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/chart/line_layout.hpp"
#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are internal

/// Kinds of a CSV line.
enum class Kind : int { kLine = 0, kLoneMark = 1, kEnd = 2, kSpreadLow = 3, kSpreadHigh = 4 };

std::string data_csv(const LineChart& chart) {
  std::string out = fmt::format("series,kind,{},{},label\n", csv_field(clean_text(chart.x_column)),
                                csv_field(clean_text(chart.y_column)));
  const auto put = [&](std::size_t series, Kind kind, ChartPoint p, const std::string& label) {
    out += fmt::format("{},{},{},{},{}\n", series, static_cast<int>(kind), csv_number(p.x),
                       csv_number(p.y), csv_field(clean_text(label)));
  };
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const ChartLine& line = chart.lines[i];
    if (line.lone_mark) put(i, Kind::kLoneMark, *line.lone_mark, line.label);
    for (const ChartPoint p : line.points) put(i, Kind::kLine, p, line.label);
    for (const ChartSpread& s : line.spreads) {
      put(i, Kind::kSpreadLow, {s.x, s.low}, line.label);
      put(i, Kind::kSpreadHigh, {s.x, s.high}, line.label);
    }
    if (line.end) put(i, Kind::kEnd, *line.end, line.label);
  }
  return out;
}

/// Rows "SERIES,X,Y" of a gnuplot data block, in the CSV's units.
std::string rows(std::size_t series, const std::vector<ChartPoint>& points) {
  std::string out;
  for (const ChartPoint p : points) {
    out += fmt::format("{},{},{}\n", series, number(p.x), number(p.y));
  }
  return out;
}

/// Rows "SERIES,RING,X,Y", the largest first, so that no mark hides another.
std::string block(const std::string& name, std::vector<NestedMark> marks) {
  std::stable_sort(marks.begin(), marks.end(),
                   [](const NestedMark& a, const NestedMark& b) { return a.ring > b.ring; });
  std::string out = fmt::format("${} << EOD\n", name);
  for (const NestedMark& mark : marks) {
    out +=
        fmt::format("{},{},{},{}\n", mark.series, mark.ring, number(mark.at.x), number(mark.at.y));
  }
  return out + "EOD\n";
}

/// The open marks or crosses of all lines.
std::vector<NestedMark> signs(const LineChart& chart, const LineBox& box,
                              std::optional<ChartPoint> ChartLine::*member) {
  std::vector<std::vector<ChartPoint>> points(chart.lines.size());
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    if (const auto& point = chart.lines[i].*member) points[i].push_back(*point);
  }
  return nested(points, [&](ChartPoint p) {
    return std::pair{box.pixel_x(p.x), box.pixel_y(p.y)};
  });
}

/// Rows of series, x, low and height in the axis's units, each bar clipped to the plot.
std::string spread_block(const LineChart& chart, const LineBox& box) {
  std::string out = "$spreads << EOD\n";
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    for (const ChartSpread& s : chart.lines[i].spreads) {
      const double low = std::max(s.low / chart.y_unit, box.y_low);
      out += fmt::format("{},{},{},{}\n", i, number(s.x), number(low),
                         number(s.high / chart.y_unit - low));
    }
  }
  return out + "EOD\n";
}

/// Widths of the lines' bars: at the same x later bars are narrower and drawn on top.
std::vector<double> spread_widths(const LineChart& chart, const LineBox& box) {
  constexpr double kTouch = 4;  // pixels
  constexpr double kNarrow = 1.4, kStep = 2;
  constexpr std::size_t kMaxSteps = 3;
  const auto meet = [&](const ChartLine& a, const ChartLine& b) {
    return std::any_of(a.spreads.begin(), a.spreads.end(), [&](const ChartSpread& s) {
      return std::any_of(b.spreads.begin(), b.spreads.end(), [&](const ChartSpread& t) {
        return std::abs(box.pixel_x(s.x) - box.pixel_x(t.x)) < kTouch;
      });
    });
  };
  std::vector<double> widths(chart.lines.size(), kNarrow);
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    std::size_t over = 0;
    for (std::size_t j = i + 1; j < chart.lines.size(); ++j) {
      if (meet(chart.lines[i], chart.lines[j])) ++over;
    }
    widths[i] += kStep * static_cast<double>(std::min(over, kMaxSteps));
  }
  return widths;
}

/// Arrows and labels of levels, bounds and texts above the lines. `lines`: the box without the rows
/// of text; `box`: the box with them.
std::string label_settings(const LineChart& chart, const std::vector<Banner>& banners,
                           const LineBox& lines, const LineBox& box) {
  std::string out;
  for (const ChartLevel& level : chart.levels) {
    if (!is_drawn(chart, level)) continue;
    out += fmt::format(
        "set arrow from graph 0, first {0} to graph 1, first {0} nohead lw 2 dt (10,4) lc rgb "
        "'#000000' front\n",
        number(level.y / chart.y_unit));
  }
  for (const ChartPlumb& plumb : chart.plumbs) {
    out += fmt::format(
        "set arrow from first {0}, graph 0 to first {0}, graph 1 nohead lw 2 dt (10,4) lc rgb "
        "'#000000' front\n",
        number(plumb.x));
  }
  for (const Banner& banner : banners) {
    const double middle = lines.height + (banner.row + 0.45) * kLineHeight;  // pixels
    out += fmt::format(
        "set label {} at first {}, first {} center noenhanced tc rgb '{}' boxed front\n",
        gnuplot_quote(banner.text), number(box.x_at((banner.left + banner.right) / 2)),
        number(box.y_at(middle)), banner.colour);
    if (!banner.has_stem) continue;
    out += fmt::format(
        "set arrow from first {0}, first {1} to first {0}, first {2} nohead lw 1 dt solid lc rgb "
        "'{3}' front\n",
        number(banner.points_to.x), number(box.y_at(middle - 0.45 * kLineHeight)),
        number(banner.points_to.y / chart.y_unit), banner.colour);
  }
  return out;
}

std::string script_of(const LineChart& chart, const FigureStyle& style) {
  const Canvas canvas = canvas_of(style);
  LineBox lines = extent(chart);
  Layout layout{.height = kLinePlotHeight, .y_label = chart.y_label};
  const std::vector<Tick> y_ticks = ticks_up(lines);
  layout.left = kTicks + widest(y_ticks);
  lines.width = canvas.plot_width(left_of_plot(layout));
  layout.x_label = x_name(chart, lines);
  const std::vector<Banner> banners = banners_of(chart, lines);
  LineBox box = lines;
  for (const Banner& banner : banners) {
    box.height = std::max(box.height, lines.height + (banner.row + 1) * kLineHeight);
  }
  box.y_high = lines.y_at(box.height);
  layout.height = box.height;

  std::string settings =
      fmt::format(
          "set style textbox opaque noborder margins 0.3,0.3\n"
          "set xrange [{}:{}]\nset yrange [{}:{}]\n{}{}set xtics {}\nset ytics {}\n",
          number(box.x_low), number(box.x_high), number(box.y_low), number(box.y_high),
          box.log_x ? "set logscale x\n" : "", box.log_y ? "set logscale y\n" : "",
          tick_list(ticks_across(chart, lines)), tick_list(y_ticks)) +
      label_settings(chart, banners, lines, box);

  const std::vector<NestedMark> marks = marks_of(chart, lines);
  const std::vector<NestedMark> lone_marks = signs(chart, lines, &ChartLine::lone_mark);
  const std::vector<NestedMark> ends = signs(chart, lines, &ChartLine::end);
  settings += "$stripes << EOD\n";
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    for (const auto& piece : stripes_of(chart, i, lines)) settings += rows(i, piece) + "\n";
  }
  settings += "EOD\n";
  if (chart.steps) {
    settings += "$feet << EOD\n";
    for (std::size_t i = 0; i < chart.lines.size(); ++i) {
      const auto& points = chart.lines[i].points;
      if (!points.empty()) settings += rows(i, {points.front()});
    }
    settings += "EOD\n";
  }
  settings += block("marks", marks) + block("lone_marks", lone_marks) + block("ends", ends);
  const bool spread = std::any_of(chart.lines.begin(), chart.lines.end(),
                                  [](const ChartLine& line) { return !line.spreads.empty(); });
  if (spread) settings += spread_block(chart, lines);

  PlotClauses clauses{layout, canvas};
  const std::string file = gnuplot_quote(chart.name + ".csv");
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const LineStyle line = line_style(i);
    clauses.add(fmt::format(
        "{} skip 1 using ($1=={}&&$2=={}?$3:NaN):($4/{}) with {} lw 2.6 dt {} lc rgb '{}' "
        "notitle",
        file, i, static_cast<int>(Kind::kLine), number(chart.y_unit),
        chart.steps ? "steps" : "lines", line.dash, line.colour));
    if (!chart.steps || chart.lines[i].points.empty()) continue;
    clauses.add(fmt::format(
        "$feet using ($1=={}?$2:NaN):($3/{}) with impulses lw 2.6 dt {} lc rgb '{}' notitle", i,
        number(chart.y_unit), line.dash, line.colour));
  }
  const std::vector<double> widths = spread_widths(chart, lines);
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    if (chart.lines[i].spreads.empty()) continue;
    clauses.add(fmt::format(
        "$spreads using ($1=={}?$2:NaN):3:(0):4 with vectors nohead lw {} lc rgb '{}' notitle", i,
        number(widths[i]), line_style(i).colour));
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    // Blank rows separate the pieces.
    clauses.add(
        fmt::format("$stripes using ($1=={}?$2:NaN):($3/{}) with lines lw 3 lc rgb '{}' notitle", i,
                    number(chart.y_unit), line_style(i).colour));
  }
  // A clause per existing ring and line, the largest first, so that no mark hides another.
  const auto points = [&](const char* name, const std::vector<NestedMark>& of, const auto& how) {
    std::set<std::pair<std::size_t, std::size_t>, std::greater<>> rings;
    for (const NestedMark& mark : of) rings.insert({mark.ring, mark.series});
    for (const auto& [ring, series] : rings) {
      const LineStyle line = line_style(series);
      clauses.add(fmt::format(
          "${} using ($1=={}&&$2=={}?$3:NaN):($4/{}) with points {} lc rgb '{}' notitle", name,
          series, ring, number(chart.y_unit), how(line, ring), line.colour));
    }
  };
  points("marks", marks, [](const LineStyle& line, std::size_t ring) {
    return ring == 0
               ? fmt::format("pt {} ps spot", line.mark)
               : fmt::format("pt {} ps {}*spot lw 2", line.open_mark, number(ring_size(ring)));
  });
  points("lone_marks", lone_marks, [](const LineStyle& line, std::size_t ring) {
    return fmt::format("pt {} ps {}*sign lw 2.2", line.open_mark, number(ring_size(ring)));
  });
  points("ends", ends, [](const LineStyle&, std::size_t ring) {
    return fmt::format("pt 2 ps {}*sign lw 3", number(1 + (ring_size(ring) - 1) / 2));
  });
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const LineStyle line = line_style(i);
    const std::string drawn = fmt::format("lw 2.6 dt {} lc rgb '{}'", line.dash, line.colour);
    clauses.add_entry(chart.lines[i].has_marks
                          ? fmt::format("linespoints {} pt {} ps mark", drawn, line.mark)
                          : "lines " + drawn,
                      chart.lines[i].label);
  }
  if (!lone_marks.empty()) {
    clauses.add_entry("points pt 6 ps sign lw 2.2 lc rgb '#555555'", chart.lone_mark_label);
  }
  for (const ChartPlumb& plumb : chart.plumbs) {
    clauses.add_entry("lines lw 2 dt (10,4) lc rgb '#000000'", plumb.label);
  }
  if (!ends.empty()) {
    clauses.add_entry("points pt 2 ps sign lw 3 lc rgb '#555555'", chart.end_label);
  }
  return script(chart.name, chart.title, layout, settings, clauses.str(), style);
}

}  // namespace

Figure draw(const LineChart& chart) { return figure_of(chart, data_csv(chart), script_of); }

}  // namespace kvsim
