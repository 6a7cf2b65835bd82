#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/chart.hpp"
#include "sim/report/chart_parts.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/figure_document.hpp"
#include "sim/report/figure_page.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/line_layout.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are ours alone

/// Kinds of a CSV line.
enum class Kind : int { kLine = 0, kLoneMark = 1, kEnd = 2, kSpreadLow = 3, kSpreadHigh = 4 };

/// A text above the plot's lines, in a row of its own where it would touch another.
struct Banner {
  std::string text;
  double left = 0, right = 0;  // pixels
  const char* align = "left";
  ChartPoint points_to;  // data
  std::string_view colour;
  bool has_stem = false;
  int row = 0;
};

std::vector<Banner> lay_out(const LineChart& chart, const LineBox& box) {
  constexpr double kGap = 14;
  constexpr double kClearOfAxis = 32;  // and of the stem of what happens at the first length
  std::vector<Banner> banners;
  for (const ChartLevel& level : chart.levels) {
    const std::string text =
        clean_text(level.label) + (is_drawn(chart, level) ? "" : " (above the plot)");
    banners.push_back({text,
                       kClearOfAxis,
                       kClearOfAxis + text_pixels(text),
                       "left",
                       {box.x_low, level.y},
                       "#000000",
                       false,
                       0});
  }
  for (const ChartCallout& callout : chart.callouts) {
    const double at = box.pixel_x(callout.at.x);
    const std::string text = shortened(clean_text(callout.text), 62);
    const double width = text_pixels(text);
    // Centred over its mark as far as the edges let it.
    constexpr double kEdge = 8;
    Banner banner{text,           at - width / 2,
                  at + width / 2, "center",
                  callout.at,     callout.line ? line_style(*callout.line).colour : "#000000",
                  true,           0};
    if (banner.left < kEdge) {
      banner.align = "left";
      banner.left = kEdge;
      banner.right = kEdge + width;
    } else if (banner.right > kLinePlotWidth) {
      banner.align = "right";
      banner.left = kLinePlotWidth - width;
      banner.right = kLinePlotWidth;
    }
    banners.push_back(banner);
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

std::string x_ticks(const LineBox& box, bool integer) {
  std::string out;
  const auto put = [&](double x) {
    if (x < box.x_low || x > box.x_high) return;
    out += fmt::format("{}'{}' {}", out.empty() ? "" : ", ",
                       with_commas(static_cast<std::int64_t>(std::llround(x))), number(x));
  };
  if (box.log_x) {
    // Doublings, or as many of them as do not touch.
    constexpr double kMostTicks = 7;
    const double doublings = std::log2(box.x_high / box.x_low);
    const double step = std::exp2(std::ceil(doublings / kMostTicks));
    for (double x = std::exp2(std::ceil(std::log2(box.x_low))); x <= box.x_high; x *= step) put(x);
    return fmt::format("set logscale x 2\nset xtics ({})\n", out);
  }
  const Ticks ticks = ticks_over(box.x_low, box.x_high, 6);
  if (!integer || ticks.step < 1) return "";
  for (double x = ticks.first; x <= box.x_high; x += ticks.step) put(x);
  return fmt::format("set xtics ({})\n", out);
}

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

/// Rows of a gnuplot data block: series and place, in the CSV's units.
std::string rows(std::size_t series, const std::vector<ChartPoint>& points) {
  std::string out;
  for (const ChartPoint p : points) {
    out += fmt::format("{},{},{}\n", series, number(p.x), number(p.y));
  }
  return out;
}
std::string block(const std::string& name, const std::vector<std::vector<ChartPoint>>& marks) {
  std::string out = fmt::format("${} << EOD\n", name);
  for (std::size_t i = 0; i < marks.size(); ++i) out += rows(i, marks[i]);
  return out + "EOD\n";
}

/// Rows series, x, low, height in the axis's units, each bar within the plot; those of several
/// lines side by side, all through the marks.
std::string spread_block(const LineChart& chart, const LineBox& box) {
  constexpr double kApart = 3;  // pixels
  std::string out = "$spreads << EOD\n";
  const auto middle = static_cast<double>(chart.lines.size() - 1) / 2;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const double aside = (static_cast<double>(i) - middle) * kApart;
    for (const ChartSpread& s : chart.lines[i].spreads) {
      const double low = std::max(s.low / chart.y_unit, box.y_low);
      out += fmt::format("{},{},{},{}\n", i, number(box.x_at(box.pixel_x(s.x) + aside)),
                         number(low), number(s.high / chart.y_unit - low));
    }
  }
  return out + "EOD\n";
}

}  // namespace

Figure draw(const LineChart& chart) {
  LineBox box = extent(chart);
  make_room(chart, box);
  const std::vector<Banner> banners = lay_out(chart, box);
  int banner_rows = 0;
  for (const Banner& banner : banners) banner_rows = std::max(banner_rows, banner.row + 1);
  const double top = box.y_high;  // of what the lines need; banners stand above
  const double height = kLinePlotHeight + banner_rows * kLineHeight;
  const double per_pixel = (top - box.y_low) / kLinePlotHeight;  // linear axes alone have banners
  const LineBox lines_box = box;
  if (banner_rows > 0) box.y_high = top + banner_rows * kLineHeight * per_pixel;

  // Gridlines and stems pass behind the words.
  std::string settings = fmt::format(
      "set style textbox opaque noborder margins 0.3,0.3\nset xlabel {} noenhanced\nset ylabel {} "
      "noenhanced\nset xrange [{}:{}]\nset yrange "
      "[{}:{}]\n{}",
      gnuplot_quote(chart.x_label), gnuplot_quote(chart.y_label), number(box.x_low),
      number(box.x_high), number(box.y_low), number(box.y_high),
      chart.log_seconds_x ? second_ticks(box.x_low, box.x_high, kLinePlotWidth)
                          : x_ticks(box, chart.integer_x));
  if (box.log_y) {
    settings += "set logscale y 10\nset format y '%.0e'\n";
  }
  for (const ChartLevel& level : chart.levels) {
    if (!is_drawn(chart, level)) continue;
    const double y = level.y / chart.y_unit;
    settings += fmt::format(
        "set arrow from graph 0, first {0} to graph 1, first {0} nohead lw 2 dt (10,4) lc rgb "
        "'#000000' front\n",
        number(y));
  }
  for (const ChartPlumb& plumb : chart.plumbs) {
    settings += fmt::format(
        "set arrow from first {0}, graph 0 to first {0}, graph 1 nohead lw 2 dt (10,4) lc rgb "
        "'#000000' front\n",
        number(plumb.x));
  }
  for (const Banner& banner : banners) {
    const double y = top + (banner.row + 0.45) * kLineHeight * per_pixel;
    const std::string_view align = banner.align;
    const double at = align == "left"    ? banner.left
                      : align == "right" ? banner.right
                                         : (banner.left + banner.right) / 2;
    settings += fmt::format(
        "set label {} at first {}, first {} {} noenhanced tc rgb '{}' boxed front\n",
        gnuplot_quote(banner.text), number(box.x_at(at)), number(y), align, banner.colour);
    if (banner.has_stem) {
      settings += fmt::format(
          "set arrow from first {0}, first {1} to first {0}, first {2} nohead lw 1 dt solid lc rgb "
          "'{3}' front\n",
          number(banner.points_to.x), number(y - 0.45 * kLineHeight * per_pixel),
          number(banner.points_to.y / chart.y_unit), banner.colour);
    }
  }

  std::vector<std::vector<ChartPoint>> marks(chart.lines.size());
  std::string stripes = "$stripes << EOD\n";
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    marks[i] = marks_of(chart, i, lines_box);
    for (const auto& piece : stripes_of(chart, i, lines_box)) stripes += rows(i, piece) + "\n";
  }
  stripes += "EOD\n";
  const auto [lone_marks, ends, leftmost] = signs_of(chart, lines_box);
  // Marks where they are seen: the CSV has the values alone.
  settings +=
      stripes + block("marks", marks) + block("lone_marks", lone_marks) + block("ends", ends);

  const bool spread = std::any_of(chart.lines.begin(), chart.lines.end(),
                                  [](const ChartLine& line) { return !line.spreads.empty(); });
  if (spread) settings += spread_block(chart, lines_box);

  std::vector<std::string> entries;
  std::vector<std::string> clauses;
  const std::string file = gnuplot_quote(chart.name + ".csv");
  const auto points = [&](const char* name, std::size_t series, const std::string& style) {
    clauses.push_back(fmt::format("${} using ($1=={}?$2:NaN):($3/{}) with points {} notitle", name,
                                  series, number(chart.y_unit), style));
  };
  const auto title = [&](const std::string& style, const std::string& words) {
    entries.push_back(words);
    clauses.push_back(fmt::format("NaN with {} title {} noenhanced", style, gnuplot_quote(words)));
  };
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const LineStyle style = line_style(i);
    clauses.push_back(fmt::format(
        "{} skip 1 using ($1=={}&&$2=={}?$3:NaN):($4/{}) with lines lw 2.6 dt {} lc rgb '{}' "
        "notitle",
        file, i, static_cast<int>(Kind::kLine), number(chart.y_unit), style.dash, style.colour));
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    if (chart.lines[i].spreads.empty()) continue;
    clauses.push_back(fmt::format(
        "$spreads using ($1=={}?$2:NaN):3:(0):4 with vectors nohead lw 1.4 lc rgb '{}' notitle", i,
        line_style(i).colour));
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    // Blank rows part the pieces.
    clauses.push_back(
        fmt::format("$stripes using ($1=={}?$2:NaN):($3/{}) with lines lw 3 lc rgb '{}' notitle", i,
                    number(chart.y_unit), line_style(i).colour));
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const LineStyle style = line_style(i);
    if (!marks[i].empty()) {
      points("marks", i, fmt::format("pt {} ps spot lc rgb '{}'", style.mark, style.colour));
    }
    if (!lone_marks[i].empty()) {
      points("lone_marks", i,
             fmt::format("pt {} ps sign lw 2.2 lc rgb '{}'", style.open_mark, style.colour));
    }
    if (!ends[i].empty()) {
      points("ends", i, fmt::format("pt 2 ps sign lw 3 lc rgb '{}'", style.colour));
    }
    title(fmt::format("linespoints lw 2.6 dt {} lc rgb '{}' pt {} ps mark", style.dash,
                      style.colour, style.mark),
          shortened(clean_text(chart.lines[i].label), kLongestEntry));
  }
  const auto any = [](const std::vector<std::vector<ChartPoint>>& of_lines) {
    return std::any_of(of_lines.begin(), of_lines.end(), [](const auto& m) { return !m.empty(); });
  };
  if (any(lone_marks)) {
    title("points pt 6 ps sign lw 2.2 lc rgb '#555555'", chart.lone_mark_label);
  }
  for (const ChartPlumb& plumb : chart.plumbs) {
    title("lines lw 2 dt (10,4) lc rgb '#000000'", clean_text(plumb.label));
  }
  if (any(ends)) title("points pt 2 ps sign lw 3 lc rgb '#555555'", chart.end_label);
  const Layout layout{kLineLeft, height, entries};
  Figure figure{chart.name, clean_text(chart.title), data_csv(chart),
                script(chart.name, chart.title, layout, settings,
                       fmt::format("plot {}", fmt::join(clauses, ", \\\n     ")))};
  figure.page = page_chart(chart);
  figure.chart = chart_json(chart);
  return figure;
}

}  // namespace kvsim
