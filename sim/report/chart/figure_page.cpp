#include "sim/report/chart/figure_page.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "sim/report/chart/chart_parts.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::size_t kMaxValues = 400;  // per line; screens have no more pixels

ordered_json finite_or_null(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

/// The stride at which `n` points are shown: the smallest that leaves at most kMaxValues points.
std::size_t stride_of(std::size_t n) {
  return std::max<std::size_t>(1, (n + kMaxValues - 1) / kMaxValues);
}

/// Calls `put` for every stride-th index and for the last.
template <class Put>
void thinned(std::size_t n, Put put) {
  const std::size_t stride = stride_of(n);
  for (std::size_t i = 0; i < n; i += stride) put(i);
  if (n > 0 && (n - 1) % stride != 0) put(n - 1);
}

/// Maps gnuplot's pattern numbers to those of pages.
int hatch_of(int pattern) {
  constexpr int kHatches = 5;
  return pattern == 0 ? 0 : 1 + (pattern - 1) % kHatches;
}

struct Extent {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  [[nodiscard]] bool positive() const { return low > 0 && high > low; }
};

ordered_json axis_json(const std::string& label, const std::string& column, const Extent& extent,
                       bool log) {
  const PageAxis axis = page_axis(label, column);
  return {{"name", axis.name},
          {"unit", axis.unit},
          {"log", log && extent.positive()},
          {"logChoice", extent.positive()}};
}

ordered_json mark(const ChartPoint& at, const std::string& text) {
  return {{"x", at.x}, {"y", at.y}, {"text", text}};
}

/// The text of a line's cross: its callout, else the general meaning of crosses.
std::string end_text(const LineChart& chart, std::size_t line) {
  for (const ChartCallout& callout : chart.callouts) {
    if (callout.line == line) return callout.text;
    const auto& end = chart.lines[line].end;
    if (!callout.line && end && callout.at.x == end->x) return callout.text;
  }
  return chart.end_label;
}

ordered_json levels_json(const std::vector<ChartLevel>& levels) {
  ordered_json out = ordered_json::array();
  for (const ChartLevel& level : levels) {
    out.push_back({{"name", level.label}, {"value", level.y}});
  }
  return out;
}

ordered_json line_json(const LineChart& chart, std::size_t at) {
  const ChartLine& line = chart.lines[at];
  ordered_json out{{"name", line.label}, {"values", ordered_json::array()}};
  std::set<double> shown;
  thinned(line.points.size(), [&](std::size_t i) {
    out["values"].push_back({line.points[i].x, finite_or_null(line.points[i].y)});
    shown.insert(line.points[i].x);
  });
  const std::vector<ChartSpread>& band = line.band.empty() ? line.spreads : line.band;
  if (!band.empty()) {
    out["band"] = ordered_json::array();
    // Thinned to the line's x values, because readers pair them; the band may have other points.
    for (const ChartSpread& s : band) {
      const bool kept = band.size() <= kMaxValues || shown.contains(s.x) || &s == &band.back();
      if (kept) out["band"].push_back({s.x, finite_or_null(s.low), finite_or_null(s.high)});
    }
  }
  if (!line.has_marks) out["marks"] = false;
  if (chart.steps) out["step"] = true;
  // array(): compilers interpret braces around a single value differently.
  if (line.lone_mark) {
    out["open"] = ordered_json::array({mark(*line.lone_mark, chart.lone_mark_label)});
  }
  if (line.end) out["ends"] = ordered_json::array({mark(*line.end, end_text(chart, at))});
  return out;
}

}  // namespace

PageAxis page_axis(const std::string& label, const std::string& column) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kUnits{{
      {"bytes", "B"},
      {"tok_s", "tok/s"},
      {"request_s", "requests/s"},
      {"goodput", "requests/s"},
      {"_s", "s"},
      {"_tokens", "tokens"},
      {"_share", "share"},
      {"entries_final", "entries"},
      {"percent_at_or_below", "%"},
  }};
  constexpr std::string_view kThousand = "thousand ";  // pages use base units
  PageAxis axis{.name = label, .unit = {}};
  const std::string base = column.substr(0, column.find('/'));  // "ttft_s/p90"
  for (const auto& [suffix, unit] : kUnits) {
    if (!axis.unit.empty() || !base.ends_with(suffix)) continue;
    axis.unit = unit;
  }
  if (base == "tokens") axis.unit = "tokens";
  if (axis.unit.empty() && base.find("bytes") != std::string::npos) axis.unit = "B";  // bytes_held
  const auto is_word = [](std::string_view text) {
    return !text.empty() && text.find(' ') == std::string_view::npos;
  };
  const std::size_t open = label.rfind(" (");
  if (open != std::string::npos && label.ends_with(')')) {
    std::string inside = label.substr(open + 2, label.size() - open - 3);
    if (inside.starts_with(kThousand)) inside.erase(0, kThousand.size());
    if (is_word(inside)) {
      axis.name = label.substr(0, open);
      if (axis.unit.empty()) axis.unit = inside;
    }
    return axis;
  }
  return axis;
}

ordered_json page_chart(const LineChart& chart) {
  Extent x, y;
  std::set<double> at;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint p : line.points) {
      x.add(p.x);
      y.add(p.y);
      at.insert(p.x);
    }
  }
  const bool log_x = chart.log_seconds_x ? chart::needs_log(x.low, x.high)
                                         : chart.log_x_where_wide && chart::is_log_spaced(at);
  const bool log_y = chart.log_y_where_wide && chart::needs_log(y.low, y.high);
  ordered_json out{{"kind", "lines"},
                   {"x", axis_json(chart.x_label, chart.x_column, x, log_x)},
                   {"y", axis_json(chart.y_label, chart.y_column, y, log_y)},
                   {"levels", levels_json(chart.levels)},
                   {"series", ordered_json::array()}};
  if (!chart.plumbs.empty()) {
    out["plumbs"] = ordered_json::array();
    for (const ChartPlumb& plumb : chart.plumbs) {
      out["plumbs"].push_back({{"name", plumb.label}, {"value", plumb.x}});
    }
  }
  for (std::size_t i = 0; i < chart.lines.size(); ++i) out["series"].push_back(line_json(chart, i));
  const auto longest = std::max_element(
      chart.lines.begin(), chart.lines.end(),
      [](const ChartLine& a, const ChartLine& b) { return a.points.size() < b.points.size(); });
  if (longest != chart.lines.end() && longest->points.size() > kMaxValues) {
    out["note"] =
        fmt::format("Of {} points of the longest line every {} are drawn; the CSV has all.",
                    longest->points.size(), stride_of(longest->points.size()));
  }
  return out;
}

ordered_json page_chart(const AreaChart& chart) {
  Extent none;
  ordered_json out{{"kind", "area"},
                   {"x", axis_json(chart.x_label, chart.x_column, none, false)},
                   {"y", axis_json(chart.y_label, "bytes", none, false)},
                   {"levels", levels_json(chart.levels)},
                   {"series", ordered_json::array()}};
  for (const AreaBand& band : chart.bands) {
    const bool any =
        std::any_of(band.values.begin(), band.values.end(), [](double v) { return v > 0; });
    if (!any) continue;
    ordered_json one{{"name", band.style.words},
                     {"fill", band.style.fill.colour},
                     {"hatch", hatch_of(band.style.fill.pattern)},
                     {"values", ordered_json::array()}};
    thinned(chart.x.size(), [&](std::size_t i) {
      one["values"].push_back({chart.x[i], finite_or_null(band.values[i])});
    });
    out["series"].push_back(std::move(one));
  }
  return out;
}

ordered_json page_chart(const ScatterChart& chart) {
  Extent x, y;
  ordered_json series = ordered_json::array();
  std::size_t faint = 0;
  for (const MarkGroup& group : chart.groups) {
    ordered_json one{{"name", group.label}, {"join", group.points.size() > 1}};
    if (group.style) one["style"] = *group.style;
    if (group.faint) {
      one["faint"] = true;
      ++faint;
    }
    one["values"] = ordered_json::array();
    for (const ChartPoint p : group.points) {
      x.add(p.x);
      y.add(p.y);
      one["values"].push_back({p.x, p.y});
    }
    series.push_back(std::move(one));
  }
  const std::vector<ChartPoint> front = pareto_front(chart.groups);
  if (front.size() > 1) {
    ordered_json one{{"name", "Pareto front"}, {"join", true}, {"front", true}};
    one["values"] = ordered_json::array();
    for (const ChartPoint p : front) one["values"].push_back({p.x, p.y});
    series.push_back(std::move(one));
  }
  ordered_json out{
      {"kind", "points"},
      {"x",
       axis_json(chart.x_label, chart.x_column, x, chart.log_x && chart::needs_log(x.low, x.high))},
      {"y", axis_json(chart.y_label, chart.y_column, y, chart::needs_log(y.low, y.high))},
      {"series", std::move(series)}};
  std::string note = chart.remark;
  if (!note.empty())
    note.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(note.front())));
  if (faint > 0) note += fmt::format("{}Grey: {}.", note.empty() ? "" : ". ", chart.faint_label);
  if (!note.empty()) out["note"] = note;
  return out;
}

ordered_json page_chart(const BarChart& chart) {
  const PageAxis axis = page_axis(chart.x_label, chart.column);
  ordered_json out{{"kind", "bars"},
                   {"y", {{"name", axis.name}, {"unit", axis.unit}}},
                   {"categories", ordered_json::array()},
                   {"details", ordered_json::array()},
                   {"headings", ordered_json::array()},
                   {"ends", ordered_json::array()}};
  std::vector<std::pair<PartStyle, std::vector<double>>> parts;
  for (const PartStyle& style : chart.styles) {
    parts.emplace_back(style, std::vector<double>(chart.bars.size(), 0));
  }
  std::vector<double> compared(chart.bars.size(), 0);
  std::set<double> limits;
  double cut = 0, fits = 0;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const ChartBar& bar = chart.bars[i];
    out["categories"].push_back(bar.label);
    out["details"].push_back(bar.detail);
    out["headings"].push_back(bar.heading);
    std::string end = bar.end_text;
    if (const std::size_t line = end.find('\n'); line != std::string::npos) {
      end.replace(line, 1, bar.cut ? " " : ", ");
    }
    if (bar.compared)
      end +=
          fmt::format("{}{} {}", end.empty() ? "" : "; ", chart.compared_label, bar.compared_text);
    out["ends"].push_back(end);
    if (bar.limit) limits.insert(*bar.limit);
    double sum = 0;
    for (const auto& [style, value] : bar.parts) {
      sum += value;
      auto found = std::find_if(
          parts.begin(), parts.end(),
          [&name = style.words](const auto& part) { return part.first.words == name; });
      if (found == parts.end()) {
        found = parts.insert(parts.end(), {style, std::vector<double>(chart.bars.size(), 0)});
      }
      found->second[i] += value;
    }
    if (bar.compared) compared[i] = *bar.compared;
    if (bar.cut && sum > *bar.cut) {
      cut = std::max(cut, *bar.cut);
    } else {
      fits = std::max(fits, sum);
    }
  }
  if (cut > 0) out["y"]["max"] = std::max(cut, fits);
  out["levels"] = ordered_json::array();
  if (limits.size() == 1) {
    out["levels"].push_back({{"name", chart.limit_label}, {"value", *limits.begin()}});
  } else if (limits.size() > 1) {
    out["limits"] = ordered_json::array();
    for (const ChartBar& bar : chart.bars) {
      out["limits"].push_back(bar.limit ? ordered_json(*bar.limit) : ordered_json(nullptr));
    }
    out["limitName"] = chart.limit_label;
  }
  const bool any_range = std::any_of(chart.bars.begin(), chart.bars.end(),
                                     [](const ChartBar& bar) { return bar.range.has_value(); });
  if (any_range) {
    out["ranges"] = ordered_json::array();
    for (const ChartBar& bar : chart.bars) {
      out["ranges"].push_back(bar.range ? ordered_json::array({bar.range->low, bar.range->high})
                                        : ordered_json(nullptr));
    }
    out["rangeName"] = chart.range_label;
  }
  out["series"] = ordered_json::array();
  for (const auto& [style, values] : parts) {
    if (std::none_of(values.begin(), values.end(), [](double v) { return v > 0; })) continue;
    out["series"].push_back({{"name", style.words},
                             {"fill", style.fill.colour},
                             {"hatch", hatch_of(style.fill.pattern)},
                             {"values", values}});
  }
  if (std::any_of(compared.begin(), compared.end(), [](double v) { return v > 0; })) {
    out["series"].push_back({{"name", chart.compared_label},
                             {"fill", "#E69F00"},
                             {"hatch", 0},
                             {"beside", true},
                             {"values", compared}});
  }
  return out;
}

ordered_json page_chart(const HeatMap& map) {
  const PageAxis axis = page_axis(map.z_label, map.z_column);
  ordered_json cells = ordered_json::array();
  for (std::size_t row = 0; row < map.values.size(); ++row) {
    for (std::size_t column = 0; column < map.values[row].size(); ++column) {
      const auto& value = map.values[row][column];
      if (value) cells.push_back({column, row, finite_or_null(*value)});
    }
  }
  return {{"kind", "heat"},
          {"heat",
           {{"rows", map.y_values},
            {"columns", map.x_values},
            {"cells", std::move(cells)},
            {"unit", axis.unit},
            {"rowName", map.y_label},
            {"columnName", map.x_label},
            {"valueName", axis.name}}}};
}

}  // namespace kvsim
