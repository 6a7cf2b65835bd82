#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "sim/report/chart.hpp"
#include "sim/report/chart_parts.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are ours alone

constexpr double kLeft = 104;  // pixels
constexpr double kPlotWidth = plot_width(kLeft);
constexpr double kPlotHeight = 330;
constexpr double kRoomAbove = 1.15;  // of the highest level that a line may rise to

/// Kinds of a CSV line.
enum class Kind : int { kLine = 0, kLoneMark = 1, kCallout = 2 };

struct Box {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  bool log_y = false;
};

/// The rectangle the lines fill, in the axis's units.
Box extent(const LineChart& chart) {
  Box box{INFINITY, -INFINITY, INFINITY, -INFINITY};
  double smallest_positive = INFINITY;
  bool all_positive = true;
  const auto see = [&](ChartPoint p) {
    const double y = p.y / chart.y_unit;
    box.x_low = std::min(box.x_low, p.x);
    box.x_high = std::max(box.x_high, p.x);
    box.y_low = std::min(box.y_low, y);
    box.y_high = std::max(box.y_high, y);
    if (y > 0) smallest_positive = std::min(smallest_positive, y);
    all_positive = all_positive && y > 0;
  };
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint p : line.points) see(p);
    if (line.lone_mark) see(*line.lone_mark);
  }
  for (const ChartCallout& callout : chart.callouts) see(callout.at);
  if (!(box.x_high >= box.x_low)) return {};
  if (!chart.levels.empty()) {
    double level = 0;
    for (const ChartLevel& l : chart.levels) level = std::max(level, l.y / chart.y_unit);
    // What was asked for beyond the memory may be many times as much; the crossing is what counts.
    box.y_high = std::max(level, std::min(box.y_high, level * kRoomAbove));
  }
  constexpr double kWide = 30;
  box.log_y = chart.log_y_where_wide && all_positive && box.y_high > kWide * smallest_positive;
  if (box.log_y) {
    box.y_low = std::pow(10.0, std::floor(std::log10(smallest_positive)));
    box.y_high = std::pow(10.0, std::ceil(std::log10(box.y_high)));
  } else {
    box.y_low = std::min(0.0, box.y_low);
    box.y_high = box.y_high > box.y_low ? box.y_high * 1.04 : box.y_low + 1;
  }
  const double pad = box.x_high > box.x_low ? 0.025 * (box.x_high - box.x_low) : 0.5;
  box.x_low -= pad;
  box.x_high += pad;
  return box;
}

/// A text above the plot's lines, in a row of its own where it would touch another.
struct Banner {
  std::string text;
  double left = 0, right = 0;  // pixels
  double anchor_x = 0;         // data
  ChartPoint points_to;        // data
  std::string_view colour;
  bool has_stem = false;
  int row = 0;
};

std::vector<Banner> lay_out(const LineChart& chart, const Box& box) {
  constexpr double kGap = 14;
  constexpr double kClearOfAxis = 32;  // and of the stem of what happens at the first length
  std::vector<Banner> banners;
  for (const ChartLevel& level : chart.levels) {
    banners.push_back({clean_text(level.label),
                       kClearOfAxis,
                       kClearOfAxis + text_pixels(level.label),
                       box.x_low,
                       {box.x_low, level.y},
                       "#000000",
                       false,
                       0});
  }
  for (const ChartCallout& callout : chart.callouts) {
    const double at = (callout.at.x - box.x_low) / (box.x_high - box.x_low) * kPlotWidth;
    const std::string text = shortened(clean_text(callout.text), 62);
    const double width = text_pixels(text);
    // Centred over its mark as far as the edges let it.
    const double left = std::clamp(at - width / 2, 8.0, std::max(8.0, kPlotWidth - width));
    banners.push_back({text, left, left + width, 0, callout.at,
                       kLineColours[callout.line % kLineColours.size()], true, 0});
  }
  // The rightmost first and lowest, so that a stem to the left passes no text of the rows below.
  std::stable_sort(banners.begin(), banners.end(), [](const Banner& a, const Banner& b) {
    return std::pair{a.has_stem, -a.points_to.x} < std::pair{b.has_stem, -b.points_to.x};
  });
  for (std::size_t i = 0; i < banners.size(); ++i) {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t j = 0; j < i; ++j) {
        const bool overlap =
            banners[i].left < banners[j].right + kGap && banners[j].left < banners[i].right + kGap;
        if (overlap && banners[i].row <= banners[j].row) {
          banners[i].row = banners[j].row + 1;
          moved = true;
        }
      }
    }
  }
  return banners;
}

std::string x_ticks(const Box& box, bool integer) {
  const Ticks ticks = ticks_over(box.x_low, box.x_high, 6);
  if (!integer || ticks.step < 1) return "";
  std::string out;
  for (double x = ticks.first; x <= box.x_high; x += ticks.step) {
    if (x < box.x_low) continue;
    out += fmt::format("{}'{}' {}", out.empty() ? "" : ", ",
                       with_commas(static_cast<std::int64_t>(std::llround(x))), number(x));
  }
  return fmt::format("set xtics ({})\n", out);
}

std::string data_csv(const LineChart& chart) {
  std::string out = fmt::format("series,kind,{},{},label\n", chart.x_column, chart.y_column);
  const auto put = [&](std::size_t series, Kind kind, ChartPoint p, const std::string& label) {
    out += fmt::format("{},{},{},{},{}\n", series, static_cast<int>(kind), csv_number(p.x),
                       csv_number(p.y), csv_field(clean_text(label)));
  };
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const ChartLine& line = chart.lines[i];
    if (line.lone_mark) put(i, Kind::kLoneMark, *line.lone_mark, line.label);
    for (const ChartPoint p : line.points) put(i, Kind::kLine, p, line.label);
  }
  for (const ChartCallout& callout : chart.callouts) {
    put(callout.line, Kind::kCallout, callout.at, callout.text);
  }
  return out;
}

}  // namespace

Figure draw(const LineChart& chart) {
  Box box = extent(chart);
  const std::vector<Banner> banners = lay_out(chart, box);
  int banner_rows = 0;
  for (const Banner& banner : banners) banner_rows = std::max(banner_rows, banner.row + 1);
  const double top = box.y_high;  // of what the lines need; banners stand above
  const double height = kPlotHeight + banner_rows * kLineHeight;
  const double per_pixel = (top - box.y_low) / kPlotHeight;  // linear axes alone have banners
  if (banner_rows > 0) box.y_high = top + banner_rows * kLineHeight * per_pixel;

  // Gridlines and stems pass behind the words.
  std::string settings = fmt::format(
      "set style textbox opaque noborder margins 0.3,0.3\nset xlabel {} noenhanced\nset ylabel {} "
      "noenhanced\nset xrange [{}:{}]\nset yrange "
      "[{}:{}]\n{}",
      gnuplot_quote(chart.x_label), gnuplot_quote(chart.y_label), number(box.x_low),
      number(box.x_high), number(box.y_low), number(box.y_high), x_ticks(box, chart.integer_x));
  if (box.log_y) {
    settings += "set logscale y 10\nset format y '%.0e'\n";
  }
  for (const ChartLevel& level : chart.levels) {
    const double y = level.y / chart.y_unit;
    settings += fmt::format(
        "set arrow from graph 0, first {0} to graph 1, first {0} nohead lw 2 dt (10,4) lc rgb "
        "'#000000' front\n",
        number(y));
  }
  for (const Banner& banner : banners) {
    const double y = top + (banner.row + 0.45) * kLineHeight * per_pixel;
    const double x = box.x_low + banner.left / kPlotWidth * (box.x_high - box.x_low);
    settings +=
        fmt::format("set label {} at first {}, first {} left noenhanced tc rgb '{}' boxed front\n",
                    gnuplot_quote(banner.text), number(x), number(y), banner.colour);
    if (banner.has_stem) {
      settings += fmt::format(
          "set arrow from first {0}, first {1} to first {0}, first {2} nohead lw 1 dt solid lc rgb "
          "'{3}' front\n",
          number(banner.points_to.x), number(y - 0.45 * kLineHeight * per_pixel),
          number(banner.points_to.y / chart.y_unit), banner.colour);
    }
  }

  std::vector<std::string> entries;
  std::vector<std::string> clauses;
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const auto clause = [&](std::size_t series, Kind kind, const std::string& style,
                          const std::string& title) {
    clauses.push_back(
        fmt::format("{} skip 1 using ($1=={}&&$2=={}?$3:NaN):($4/{}) {} {}", file, series,
                    static_cast<int>(kind), number(chart.y_unit), style,
                    title.empty() ? "notitle" : "title " + gnuplot_quote(title) + " noenhanced"));
  };
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const ChartLine& line = chart.lines[i];
    const std::string label = shortened(clean_text(line.label), kLongestEntry);
    entries.push_back(label);
    const auto n = static_cast<int>(line.points.size());
    // Lines that lie on each other stay visible: later ones are thinner and dashed.
    const double width = 3.2 - 0.35 * static_cast<double>(std::min<std::size_t>(i, 4));
    clause(i, Kind::kLine,
           fmt::format("with linespoints lw {:.2f} dt {} lc rgb '{}' pt {} ps mark pi {}", width,
                       kDashes[i % kDashes.size()], kLineColours[i % kLineColours.size()],
                       kMarks[i % kMarks.size()], n <= 16 ? 1 : std::max(1, n / 8)),
           label);
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const bool called = std::any_of(chart.callouts.begin(), chart.callouts.end(),
                                    [i](const ChartCallout& c) { return c.line == i; });
    if (!called) continue;
    clause(i, Kind::kCallout,
           fmt::format("with points pt 2 ps 2*mark lw 3 lc rgb '{}'",
                       kLineColours[i % kLineColours.size()]),
           "");
  }
  int rings = 0;  // around what else stands there, each wider than the one before
  bool lone_marks_titled = chart.lone_mark_label.empty();
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    if (!chart.lines[i].lone_mark) continue;
    clause(i, Kind::kLoneMark,
           fmt::format("with points pt 6 ps {:.2f}*mark lw 2.2 lc rgb '{}'", 2.3 + 0.6 * rings++,
                       kLineColours[i % kLineColours.size()]),
           "");
    if (!lone_marks_titled) {
      lone_marks_titled = true;
      entries.push_back(chart.lone_mark_label);
      clauses.push_back(
          fmt::format("NaN with points pt 6 ps 2.3*mark lw 2.2 lc rgb '#555555' title {}",
                      gnuplot_quote(chart.lone_mark_label)));
    }
  }
  std::string plot = "plot ";
  for (std::size_t i = 0; i < clauses.size(); ++i) {
    plot += (i == 0 ? "" : ", \\\n     ") + clauses[i];
  }
  return {chart.name, clean_text(chart.title), data_csv(chart),
          script(chart.name, chart.title, {kLeft, height, entries}, settings, plot)};
}

}  // namespace kvsim
