#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/chart.hpp"
#include "sim/report/chart_parts.hpp"
#include "sim/report/csv.hpp"
#include "sim/report/figure_page.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

using namespace chart;  // NOLINT: the parts are ours alone

constexpr double kLeft = 104;  // pixels
constexpr double kPlotWidth = plot_width(kLeft);
constexpr double kPlotHeight = 330;
constexpr double kRoomAbove = 1.15;  // of the highest level that a line may rise to

/// A level this many times what the lines reach would leave them no room.
constexpr double kFarLevel = 4;

/// The least that an axis of times spans, last over first.
constexpr double kLeastSpan = 3;

/// Kinds of a CSV line.
enum class Kind : int { kLine = 0, kLoneMark = 1, kEnd = 2, kSpreadLow = 3, kSpreadHigh = 4 };

/// The rectangle the lines fill, in the axis's units, and where its points stand on paper.
struct Box {
  double x_low = 0, x_high = 1, y_low = 0, y_high = 1;
  bool log_x = false, log_y = false;
  double y_unit = 1;
  double height = kPlotHeight;  // pixels from y_low to y_high

  [[nodiscard]] double pixel_x(double x) const {
    return share(x, x_low, x_high, log_x) * kPlotWidth;
  }
  [[nodiscard]] double pixel_y(double y) const {
    return share(y / y_unit, y_low, y_high, log_y) * height;
  }
  /// The x that stands `pixel` from the left edge.
  [[nodiscard]] double x_at(double pixel) const {
    const double s = pixel / kPlotWidth;
    return log_x ? x_low * std::pow(x_high / x_low, s) : x_low + s * (x_high - x_low);
  }

 private:
  static double share(double value, double low, double high, bool log) {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
};

double highest(const LineChart& chart) {
  double high = 0;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint p : line.points) high = std::max(high, p.y);
    for (const ChartSpread& s : line.spreads) high = std::max(high, s.high);
    if (line.lone_mark) high = std::max(high, line.lone_mark->y);
    if (line.end) high = std::max(high, line.end->y);
  }
  return high;
}

bool is_drawn(const LineChart& chart, const ChartLevel& level) {
  return level.y <= kFarLevel * highest(chart);
}

Box extent(const LineChart& chart) {
  Box box{INFINITY, -INFINITY, INFINITY, -INFINITY};
  box.y_unit = chart.y_unit;
  double smallest_positive = INFINITY;
  bool all_positive = true;
  std::set<double> lengths;
  const auto see = [&](ChartPoint p) {
    const double y = p.y / chart.y_unit;
    lengths.insert(p.x);
    box.x_low = std::min(box.x_low, p.x);
    box.x_high = std::max(box.x_high, p.x);
    box.y_low = std::min(box.y_low, y);
    box.y_high = std::max(box.y_high, y);
    if (y > 0) smallest_positive = std::min(smallest_positive, y);
    all_positive = all_positive && y > 0;
  };
  for (const ChartPlumb& plumb : chart.plumbs) {
    box.x_low = std::min(box.x_low, plumb.x);
    box.x_high = std::max(box.x_high, plumb.x);
  }
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint p : line.points) see(p);
    if (line.lone_mark) see(*line.lone_mark);
    if (line.end) see(*line.end);
    // A bar that reaches below zero ends at the axis: it does not bring errors below zero.
    for (const ChartSpread& s : line.spreads) see({s.x, s.high});
    for (const ChartSpread& s : line.spreads) {
      if (s.low > 0) see({s.x, s.low});
    }
  }
  if (!(box.x_high >= box.x_low)) return {};
  double level = 0;
  for (const ChartLevel& l : chart.levels) {
    if (is_drawn(chart, l)) level = std::max(level, l.y / chart.y_unit);
  }
  if (level > 0) {
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
  constexpr double kPad = 0.025;
  box.log_x = chart.log_seconds_x || (chart.log_x_where_wide && goes_by_doublings(lengths));
  if (chart.log_seconds_x && !(box.x_high > kLeastSpan * box.x_low)) {
    // Times that are all alike stand in the middle of a short axis.
    const double middle = std::sqrt(box.x_low * box.x_high);
    box.x_low = middle / std::sqrt(kLeastSpan);
    box.x_high = middle * std::sqrt(kLeastSpan);
  }
  if (box.log_x) {
    const double pad = std::pow(box.x_high / box.x_low, kPad);
    box.x_low /= pad;
    box.x_high *= pad;
  } else {
    const double pad = box.x_high > box.x_low ? kPad * (box.x_high - box.x_low) : 0.5;
    box.x_low -= pad;
    box.x_high += pad;
  }
  return box;
}

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

std::vector<Banner> lay_out(const LineChart& chart, const Box& box) {
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
    } else if (banner.right > kPlotWidth) {
      banner.align = "right";
      banner.left = kPlotWidth - width;
      banner.right = kPlotWidth;
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

std::string x_ticks(const Box& box, bool integer) {
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
  std::string out = fmt::format("series,kind,{},{},label\n", chart.x_column, chart.y_column);
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

/// The line's y at `x` as drawn, straight on paper; its first or last one outside.
double y_at(const ChartLine& line, double x, const Box& box) {
  const auto& points = line.points;
  if (x <= points.front().x) return points.front().y;
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (x > points[i].x) continue;
    const ChartPoint a = points[i - 1], b = points[i];
    const double from = box.pixel_x(a.x), to = box.pixel_x(b.x);
    if (!(to > from)) return b.y;
    const double share = (box.pixel_x(x) - from) / (to - from);
    return box.log_y ? a.y * std::pow(b.y / a.y, share) : a.y + (b.y - a.y) * share;
  }
  return points.back().y;
}

/// Pixels that marks and stripes share: each line has a slot in every period.
struct Slots {
  double width = 0;  // of a slot
  std::size_t lines = 1;
  [[nodiscard]] double period() const { return width * static_cast<double>(lines); }
};
Slots slots_of(const LineChart& chart) {
  constexpr double kMarkWidth = 12, kPeriod = 72;  // pixels
  const std::size_t n = std::max<std::size_t>(chart.lines.size(), 1);
  return {std::max(kMarkWidth, kPeriod / static_cast<double>(n)), n};
}

/// Where lines lie on each other each is seen in its own slots: the pieces of line `i`, to be drawn
/// over all lines.
std::vector<std::vector<ChartPoint>> stripes_of(const LineChart& chart, std::size_t i,
                                                const Box& box) {
  constexpr double kTouch = 4;  // pixels: about a line's width
  std::vector<std::vector<ChartPoint>> pieces;
  const ChartLine& line = chart.lines[i];
  if (line.points.size() < 2) return pieces;
  const Slots slots = slots_of(chart);
  const double low = box.pixel_x(line.points.front().x), high = box.pixel_x(line.points.back().x);
  const auto is_mine = [&](double pixel, double x, double y) {
    const auto slot = static_cast<std::size_t>(pixel / slots.width) % slots.lines;
    bool alone = true;
    std::size_t owner = i;
    const auto distance_of = [&](std::size_t line_index) {
      const std::size_t after = (line_index + slots.lines - slot) % slots.lines;
      return std::min(after, slots.lines - after);
    };
    std::size_t nearest = distance_of(i);
    for (std::size_t j = 0; j < chart.lines.size(); ++j) {
      const auto& points = chart.lines[j].points;
      if (j == i || points.size() < 2 || x < points.front().x || x > points.back().x) continue;
      if (std::abs(box.pixel_y(y_at(chart.lines[j], x, box)) - box.pixel_y(y)) >= kTouch) continue;
      alone = false;
      const std::size_t distance = distance_of(j);
      // Of two as near the earlier one, so that both agree whose slot it is.
      if (distance < nearest || (distance == nearest && j < owner)) {
        nearest = distance;
        owner = j;
      }
    }
    return !alone && owner == i;
  };
  bool open = false;
  for (double pixel = low; pixel <= high; pixel += 1) {
    const double x = box.x_at(pixel);
    const double y = y_at(line, x, box);
    const bool mine = is_mine(pixel, x, y);
    if (mine && !open) pieces.emplace_back();
    if (mine || open) pieces.back().push_back({x, y});  // up to where the next one's begins
    open = mine;
  }
  return pieces;
}

constexpr std::size_t kFewValues = 16;  // each of which has a mark

/// A value's place among those of other lines that stand where it does.
struct Place {
  std::size_t rank = 0, of = 1;
};
Place place_of(const LineChart& chart, std::size_t i, ChartPoint p, const Box& box) {
  constexpr double kTouch = 7;  // pixels
  Place place;
  for (std::size_t j = 0; j < chart.lines.size(); ++j) {
    const auto& points = chart.lines[j].points;
    if (j == i || points.size() > kFewValues) continue;
    const bool touches = std::any_of(points.begin(), points.end(), [&](ChartPoint q) {
      return std::abs(box.pixel_x(q.x) - box.pixel_x(p.x)) < kTouch &&
             std::abs(box.pixel_y(q.y) - box.pixel_y(p.y)) < kTouch;
    });
    if (!touches) continue;
    ++place.of;
    if (j < i) ++place.rank;
  }
  return place;
}

/// Where a line's marks stand. Those of a long series are spread over it, each line's in its own
/// places; those of a few values stand at them, side by side along the line where lines meet.
std::vector<ChartPoint> marks_of(const LineChart& chart, std::size_t i, const Box& box) {
  constexpr double kMarkWidth = 12;  // pixels
  const ChartLine& line = chart.lines[i];
  std::vector<ChartPoint> marks;
  if (line.points.empty()) return marks;
  const double low = box.pixel_x(line.points.front().x), high = box.pixel_x(line.points.back().x);
  const auto put = [&](double pixel) {
    const double x = box.x_at(pixel);
    marks.push_back({x, y_at(line, x, box)});
  };
  if (line.points.size() > kFewValues) {
    const Slots slots = slots_of(chart);
    for (double at = slots.width * (static_cast<double>(i) + 0.5); at < kPlotWidth;
         at += slots.period()) {
      if (at >= low && at <= high) put(at);
    }
    if (marks.empty()) put((low + high) / 2);
    return marks;
  }
  double gap = high - low;
  for (std::size_t k = 1; k < line.points.size(); ++k) {
    gap = std::min(gap, box.pixel_x(line.points[k].x) - box.pixel_x(line.points[k - 1].x));
  }
  for (const ChartPoint p : line.points) {
    const Place place = place_of(chart, i, p, box);
    if (place.of == 1) {
      marks.push_back(p);
      continue;
    }
    const double step = std::min(kMarkWidth, 0.8 * gap / static_cast<double>(place.of));
    const double whole = step * static_cast<double>(place.of - 1);
    const double from = std::clamp(box.pixel_x(p.x) - whole / 2, low, std::max(low, high - whole));
    put(from + step * static_cast<double>(place.rank));
  }
  return marks;
}

/// Moves a mark to the left until it stands clear of those before it.
ChartPoint clear_of(std::vector<ChartPoint>& taken, ChartPoint wanted, const Box& box) {
  constexpr double kRoom = 16;  // pixels
  const double x = box.pixel_x(wanted.x), y = box.pixel_y(wanted.y);
  double at = x;
  const auto is_near = [&](const ChartPoint& other) {
    return std::abs(other.x - at) < kRoom - 1 && std::abs(other.y - y) < kRoom - 1;
  };
  while (std::any_of(taken.begin(), taken.end(), is_near)) at -= kRoom;
  taken.push_back({at, y});
  return {at == x ? wanted.x : box.x_at(at), wanted.y};
}

/// Open marks and crosses, a list a line, none on another.
struct Signs {
  std::vector<std::vector<ChartPoint>> lone_marks, ends;
  double leftmost = 0;  // pixels
};
Signs signs_of(const LineChart& chart, const Box& box) {
  Signs signs;
  signs.lone_marks.resize(chart.lines.size());
  signs.ends.resize(chart.lines.size());
  std::vector<ChartPoint> taken;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const auto& end = chart.lines[i].end;
    if (end) signs.ends[i].push_back(clear_of(taken, *end, box));
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    const auto& mark = chart.lines[i].lone_mark;
    if (mark) signs.lone_marks[i].push_back(clear_of(taken, *mark, box));
  }
  signs.leftmost = kPlotWidth;
  for (const ChartPoint p : taken) signs.leftmost = std::min(signs.leftmost, p.x);
  return signs;
}

/// Room at the left for what `signs_of` moved there.
void make_room(const LineChart& chart, Box& box) {
  constexpr double kEdge = 12;  // pixels
  const double missing = kEdge - signs_of(chart, box).leftmost;
  if (missing > 0) box.x_low = box.x_at(-missing * kPlotWidth / (kPlotWidth - missing));
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
std::string spread_block(const LineChart& chart, const Box& box) {
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
  Box box = extent(chart);
  make_room(chart, box);
  const std::vector<Banner> banners = lay_out(chart, box);
  int banner_rows = 0;
  for (const Banner& banner : banners) banner_rows = std::max(banner_rows, banner.row + 1);
  const double top = box.y_high;  // of what the lines need; banners stand above
  const double height = kPlotHeight + banner_rows * kLineHeight;
  const double per_pixel = (top - box.y_low) / kPlotHeight;  // linear axes alone have banners
  const Box lines_box = box;
  if (banner_rows > 0) box.y_high = top + banner_rows * kLineHeight * per_pixel;

  // Gridlines and stems pass behind the words.
  std::string settings = fmt::format(
      "set style textbox opaque noborder margins 0.3,0.3\nset xlabel {} noenhanced\nset ylabel {} "
      "noenhanced\nset xrange [{}:{}]\nset yrange "
      "[{}:{}]\n{}",
      gnuplot_quote(chart.x_label), gnuplot_quote(chart.y_label), number(box.x_low),
      number(box.x_high), number(box.y_low), number(box.y_high),
      chart.log_seconds_x ? second_ticks(box.x_low, box.x_high, kPlotWidth)
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
  const Layout layout{kLeft, height, entries};
  Figure figure{chart.name, clean_text(chart.title), data_csv(chart),
                script(chart.name, chart.title, layout, settings,
                       fmt::format("plot {}", fmt::join(clauses, ", \\\n     ")))};
  figure.page = page_chart(chart);
  return figure;
}

}  // namespace kvsim
