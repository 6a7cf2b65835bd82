#include "sim/report/chart/line_layout.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace kvsim::chart {
namespace {

constexpr double kRoomAbove = 1.15;  // times the highest level: the limit of the axis

/// A level this many times above the lines would leave too little space for them.
constexpr double kFarLevel = 4;

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

/// The line's y at `x` as drawn, straight or in steps; outside its range its first or last y.
double y_at(const ChartLine& line, double x, const LineBox& box, bool steps) {
  const auto& points = line.points;
  if (x <= points.front().x) return points.front().y;
  for (std::size_t i = 1; i < points.size(); ++i) {
    if (x > points[i].x) continue;
    const ChartPoint a = points[i - 1], b = points[i];
    if (steps) return x < b.x ? a.y : b.y;
    const double from = box.pixel_x(a.x), to = box.pixel_x(b.x);
    if (!(to > from)) return b.y;
    const double share = (box.pixel_x(x) - from) / (to - from);
    return box.log_y ? a.y * std::pow(b.y / a.y, share) : a.y + (b.y - a.y) * share;
  }
  return points.back().y;
}

/// Pixel slots that marks and stripes share: each line has a slot in every period.
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

constexpr std::size_t kFewValues = 16;  // up to this number, each has a mark

/// The values of line `i` that have a mark.
std::vector<ChartPoint> marked_points(const LineChart& chart, std::size_t i, const LineBox& box) {
  const ChartLine& line = chart.lines[i];
  if (!line.has_marks) return {};
  if (line.points.size() <= kFewValues) return line.points;
  const Slots slots = slots_of(chart);
  std::vector<ChartPoint> out;
  std::size_t k = 0;
  for (double at = slots.width * (static_cast<double>(i) + 0.5); at < box.width;
       at += slots.period()) {
    const auto distance = [&](std::size_t point) {
      return std::abs(box.pixel_x(line.points[point].x) - at);
    };
    const std::size_t before = k;
    while (k + 1 < line.points.size() && distance(k + 1) <= distance(k)) ++k;
    const bool is_new = out.empty() || k != before;
    if (is_new && distance(k) < slots.width / 2) out.push_back(line.points[k]);
  }
  if (out.empty()) out.push_back(line.points[line.points.size() / 2]);
  return out;
}

}  // namespace

bool is_drawn(const LineChart& chart, const ChartLevel& level) {
  return level.y <= kFarLevel * highest(chart);
}

LineBox extent(const LineChart& chart) {
  LineBox box{INFINITY, -INFINITY, INFINITY, -INFINITY};
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
    // A bar that reaches below zero ends at the axis; the axis is not extended below zero.
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
    // The requested bytes may be many times the memory; only the crossing matters.
    box.y_high = std::max(level, std::min(box.y_high, level * kRoomAbove));
  }
  box.log_y = chart.log_y_where_wide && all_positive && needs_log(smallest_positive, box.y_high);
  if (box.log_y) {
    box.y_low = std::pow(10.0, std::floor(std::log10(smallest_positive)));
    const double power = std::pow(10.0, std::floor(std::log10(box.y_high)));
    const double factor = box.y_high / power;
    box.y_high = power * (factor > 5 ? 10 : factor > 2 ? 5 : 2);
  } else {
    box.y_low = std::min(0.0, box.y_low);
    box.y_high = box.y_high > box.y_low ? box.y_high * 1.04 : box.y_low + 1;
  }
  constexpr double kPad = 0.025;
  box.log_x = chart.log_seconds_x ? needs_log(box.x_low, box.x_high)
                                  : chart.log_x_where_wide && is_log_spaced(lengths);
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

std::vector<std::vector<ChartPoint>> stripes_of(const LineChart& chart, std::size_t i,
                                                const LineBox& box) {
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
      if (std::abs(box.pixel_y(y_at(chart.lines[j], x, box, chart.steps)) - box.pixel_y(y)) >=
          kTouch)
        continue;
      alone = false;
      const std::size_t distance = distance_of(j);
      // Ties go to the earlier line, so that both lines agree on the owner of the slot.
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
    const double y = y_at(line, x, box, chart.steps);
    const bool mine = is_mine(pixel, x, y);
    if (mine && !open) pieces.emplace_back();
    if (mine || open) pieces.back().push_back({x, y});  // up to the start of the next piece
    open = mine;
  }
  return pieces;
}

std::vector<NestedMark> marks_of(const LineChart& chart, const LineBox& box) {
  std::vector<std::vector<ChartPoint>> points;
  for (std::size_t i = 0; i < chart.lines.size(); ++i) {
    points.push_back(marked_points(chart, i, box));
  }
  return nested(points, [&](ChartPoint p) {
    return std::pair{box.pixel_x(p.x), box.pixel_y(p.y)};
  });
}

std::vector<Tick> ticks_up(const LineBox& box) {
  return box.log_y ? log_ticks(box.y_low, box.y_high, box.height, Direction::kUp)
                   : linear_ticks(box.y_low, box.y_high, box.height, Direction::kUp);
}

namespace {

/// The most readable unit for times up to `high`.
struct TimeUnit {
  double seconds = 1;
  const char* name = "s";
};
TimeUnit time_unit(double high) {
  if (high < 1e-3) return {1e-6, "µs"};
  return high < 1 ? TimeUnit{1e-3, "ms"} : TimeUnit{};
}

}  // namespace

std::vector<Tick> ticks_across(const LineChart& chart, const LineBox& box) {
  if (chart.log_seconds_x) {
    const TimeUnit unit = time_unit(box.x_high);
    const double low = box.x_low / unit.seconds, high = box.x_high / unit.seconds;
    std::vector<Tick> ticks = box.log_x ? log_ticks(low, high, box.width, Direction::kAcross)
                                        : linear_ticks(low, high, box.width, Direction::kAcross);
    for (Tick& tick : ticks) tick.at *= unit.seconds;
    return ticks;
  }
  if (box.log_x) return doubling_ticks(box.x_low, box.x_high, box.width);
  std::vector<Tick> ticks = linear_ticks(box.x_low, box.x_high, box.width, Direction::kAcross);
  return chart.integer_x ? whole_ticks(std::move(ticks)) : ticks;
}

std::string x_name(const LineChart& chart, const LineBox& box) {
  if (!chart.log_seconds_x) return chart.x_label;
  return fmt::format("{} ({})", chart.x_label, time_unit(box.x_high).name);
}

}  // namespace kvsim::chart
