#include "sim/report/line_layout.hpp"

#include <algorithm>
#include <set>

namespace kvsim::chart {
namespace {

constexpr double kRoomAbove = 1.15;  // of the highest level that a line may rise to

/// A level this many times what the lines reach would leave them no room.
constexpr double kFarLevel = 4;

/// The least that an axis of times spans, last over first.
constexpr double kLeastSpan = 3;

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

/// The line's y at `x` as drawn, straight on paper; its first or last one outside.
double y_at(const ChartLine& line, double x, const LineBox& box) {
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

constexpr std::size_t kFewValues = 16;  // each of which has a mark

/// A value's place among those of other lines that stand where it does.
struct Place {
  std::size_t rank = 0, of = 1;
};
Place place_of(const LineChart& chart, std::size_t i, ChartPoint p, const LineBox& box) {
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

/// Moves a mark to the left until it stands clear of those before it.
ChartPoint clear_of(std::vector<ChartPoint>& taken, ChartPoint wanted, const LineBox& box) {
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

std::vector<ChartPoint> marks_of(const LineChart& chart, std::size_t i, const LineBox& box) {
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
    for (double at = slots.width * (static_cast<double>(i) + 0.5); at < kLinePlotWidth;
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

Signs signs_of(const LineChart& chart, const LineBox& box) {
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
  signs.leftmost = kLinePlotWidth;
  for (const ChartPoint p : taken) signs.leftmost = std::min(signs.leftmost, p.x);
  return signs;
}

void make_room(const LineChart& chart, LineBox& box) {
  constexpr double kEdge = 12;  // pixels
  const double missing = kEdge - signs_of(chart, box).leftmost;
  if (missing > 0) box.x_low = box.x_at(-missing * kLinePlotWidth / (kLinePlotWidth - missing));
}

}  // namespace kvsim::chart
