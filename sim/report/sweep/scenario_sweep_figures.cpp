// Selects the figures of a sweep: lines if one number varies, heat maps if two do, bars if only
// words do.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/chart/chart.hpp"
#include "sim/report/sweep/scenario_sweep.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxMeasures = 3;  // figures of each kind
constexpr std::size_t kMaxFigures = 8;   // per measure
constexpr std::size_t kMaxLines = 8;     // per figure
constexpr std::size_t kMaxBars = 32;

/// A value as a number: a number, or a text of a number and a unit that all values share.
struct Number {
  double value = 0;
  std::string unit{};
};
std::optional<Number> number_of(const json& value) {
  if (value.is_number()) return Number{value.get<double>()};
  if (!value.is_string()) return std::nullopt;
  const std::string text = value.get<std::string>();
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit{end};
  if (end == text.c_str() || unit.size() < 2 || unit.front() != ' ' || !std::isfinite(number)) {
    return std::nullopt;
  }
  return Number{number, unit.substr(1)};
}

/// A column as an axis of a figure.
struct Axis {
  const SweepColumn* column = nullptr;
  bool numeric = false;
  bool whole = true;
  std::string unit{};
  std::vector<json> values{};  // distinct: numbers ascending, words by first appearance; no null

  [[nodiscard]] std::string label() const {
    const std::string_view of = unit.empty() ? unit_of_key() : std::string_view{unit};
    std::string words = column->name;
    std::replace(words.begin(), words.end(), '_', ' ');
    return of.empty() ? words : fmt::format("{} ({})", words, of);
  }
  /// The unit of values that are plain numbers in a scenario.
  [[nodiscard]] std::string_view unit_of_key() const {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 10> kUnits{{
        {"rate", "requests/s"},
        {"rate_scale", "times the trace's rate"},
        {"users", "users"},
        {"count", "requests"},
        {"batch", "sequences"},
        {"prompt_tokens", "tokens"},
        {"output_tokens", "tokens"},
        {"gpu_count", "GPUs"},
        {"pipeline_parallel", "GPUs"},
        {"seed", "number"},
    }};
    if (column->name == "budget" && numeric && !values.empty()) {
      return number_of(values.back())->value <= 1 ? "fraction of the prompt" : "entries";
    }
    for (const auto& [key, name] : kUnits) {
      if (column->name == key) return name;
    }
    return {};
  }
  [[nodiscard]] std::size_t index(const json& value) const {
    return static_cast<std::size_t>(std::find(values.begin(), values.end(), value) -
                                    values.begin());
  }
};

Axis axis_of(const ScenarioSweep& sweep, const SweepColumn& column) {
  Axis axis{.column = &column, .numeric = true};
  std::set<json> seen;
  std::optional<std::string> unit;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    const json value = sweep.value(column, i);
    if (value.is_null() || !seen.insert(value).second) continue;
    axis.values.push_back(value);
    const auto number = number_of(value);
    axis.numeric = axis.numeric && number && (!unit || *unit == number->unit);
    if (!number) continue;
    unit = number->unit;
    axis.whole = axis.whole && number->value == std::floor(number->value);
  }
  if (axis.numeric) {
    axis.unit = unit.value_or("");
    std::sort(axis.values.begin(), axis.values.end(), [](const json& a, const json& b) {
      return number_of(a)->value < number_of(b)->value;
    });
  }
  return axis;
}

/// A value on a heat map's axis: whole numbers formatted as on other axes.
std::string tick_text(const json& value) {
  return value.is_number_integer() ? with_commas(value.get<std::int64_t>())
                                   : sweep_value_text(value);
}

/// The axis values that the points of one figure or line share.
using Shared = std::vector<json>;

std::string shared_words(const std::vector<const Axis*>& axes, const Shared& shared) {
  std::vector<std::string> words;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (shared[a].is_null()) continue;
    const std::string text = sweep_value_text(shared[a]);
    words.push_back(axes[a]->numeric ? fmt::format("{} {}", axes[a]->column->name, text) : text);
  }
  return fmt::format("{}", fmt::join(words, ", "));
}

Shared shared_of(const ScenarioSweep& sweep, const std::vector<const Axis*>& axes,
                 std::size_t point) {
  Shared out;
  for (const Axis* axis : axes) out.push_back(sweep.value(*axis->column, point));
  return out;
}

/// Points grouped by shared values, in order of first appearance.
std::vector<std::pair<Shared, std::vector<std::size_t>>> grouped(
    const ScenarioSweep& sweep, const std::vector<const Axis*>& axes,
    const std::vector<std::size_t>& points) {
  std::vector<std::pair<Shared, std::vector<std::size_t>>> groups;
  std::map<Shared, std::size_t> at;
  for (const std::size_t point : points) {
    Shared shared = shared_of(sweep, axes, point);
    const auto [found, fresh] = at.emplace(shared, groups.size());
    if (fresh) groups.emplace_back(std::move(shared), std::vector<std::size_t>{});
    groups[found->second].second.push_back(point);
  }
  return groups;
}

std::string with_unit(const SweepMeasure& measure) {
  return measure.unit.empty() ? measure.words : fmt::format("{} ({})", measure.words, measure.unit);
}

std::string figure_name(const SweepMeasure& measure, const std::string& over,
                        const std::string& words) {
  std::string name = fmt::format("{}_vs_{}", slug(measure.path), slug(over));
  if (!words.empty()) name += "_" + slug(words);
  return name;
}

std::string title_of(const SweepMeasure& measure, const std::string& over, const std::string& words,
                     const ScenarioSweep& sweep) {
  const std::string of = words.empty() ? sweep.plan().name() : words;
  std::string title = fmt::format("{} against {}: {}", measure.words, over, of);
  title.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(title.front())));
  return title;
}

/// One line per combination of `line_axes` over x; a point without x becomes a horizontal level.
void add_lines(const ScenarioSweep& sweep, const SweepMeasure& measure, const Axis& x,
               const std::vector<const Axis*>& line_axes, const std::string& words,
               const std::vector<std::size_t>& points, FigureSet& set) {
  LineChart chart{.name = figure_name(measure, x.column->name, words),
                  .title = title_of(measure, x.column->name, words, sweep),
                  .x_label = x.label(),
                  .y_label = with_unit(measure),
                  .x_column = x.column->name,
                  .y_column = measure.path,
                  .y_unit = measure.divisor,
                  .log_y_where_wide = true,
                  .log_x_where_wide = x.whole,
                  .integer_x = x.whole};
  const double first = number_of(x.values.front())->value;
  const double last = number_of(x.values.back())->value;
  std::set<double> at;
  for (const auto& [shared, members] : grouped(sweep, line_axes, points)) {
    ChartLine line{.label = shared_words(line_axes, shared)};
    if (line.label.empty()) line.label = measure.words;
    for (const std::size_t point : members) {
      const auto y = sweep.measure(measure, point);
      if (!y || sweep.ran_out(point)) continue;
      const json value = sweep.value(*x.column, point);
      if (value.is_null()) {
        // Across the whole axis, without marks: it was not run at any x.
        line.points = {{first, *y}, {last, *y}};
        line.has_marks = false;
        break;
      }
      line.points.push_back({number_of(value)->value, *y});
    }
    if (line.points.empty()) continue;
    std::sort(line.points.begin(), line.points.end(),
              [](ChartPoint p, ChartPoint q) { return p.x < q.x; });
    for (const ChartPoint p : line.points) at.insert(p.x);
    chart.lines.push_back(std::move(line));
  }
  if (at.size() < 2) return;  // nothing to show
  set.figures.push_back(draw(chart));
  set.figures.back().kind = "lines";
}

/// Splits until a figure's lines can be distinguished: by the axis of words with the fewest values
/// first.
void add_line_figures(const ScenarioSweep& sweep, const SweepMeasure& measure, const Axis& x,
                      std::vector<const Axis*> others, FigureSet& set) {
  std::vector<std::size_t> points(sweep.size());
  for (std::size_t i = 0; i < points.size(); ++i) points[i] = i;
  std::vector<const Axis*> split;
  std::stable_sort(others.begin(), others.end(), [](const Axis* a, const Axis* b) {
    return a->values.size() < b->values.size();
  });
  const auto max_lines = [&] {
    std::size_t max = 0;
    for (const auto& [shared, members] : grouped(sweep, split, points)) {
      max = std::max(max, grouped(sweep, others, members).size());
    }
    return max;
  };
  while (max_lines() > kMaxLines && !others.empty()) {
    split.push_back(others.front());
    others.erase(others.begin());
  }
  const auto figures = grouped(sweep, split, points);
  if (figures.size() > kMaxFigures) {
    set.notes.push_back(fmt::format("{} against {} is not drawn: it would need {} figures",
                                    measure.words, x.column->name, figures.size()));
    return;
  }
  for (const auto& [shared, members] : figures) {
    add_lines(sweep, measure, x, others, shared_words(split, shared), members, set);
  }
}

/// Latency against throughput of services as the load `x` grows: one line per combination of
/// `line_axes`, in order of load, so that it bends back if throughput falls.
void add_tradeoffs(const ScenarioSweep& sweep, const Axis& x,
                   const std::vector<const Axis*>& line_axes, FigureSet& set) {
  const auto find = [&](std::string_view path) -> const SweepMeasure* {
    for (const SweepMeasure& measure : sweep.measures()) {
      if (measure.path.starts_with(path)) return &measure;
    }
    return nullptr;
  };
  const SweepMeasure* rate = find("output_tok_s");
  if (rate == nullptr) return;
  std::vector<std::size_t> points(sweep.size());
  for (std::size_t i = 0; i < points.size(); ++i) points[i] = i;
  const auto lines = grouped(sweep, line_axes, points);
  for (const char* time : {"ttft_s/p", "tpot_s/p"}) {
    const SweepMeasure* latency = find(time);
    if (latency == nullptr) continue;
    if (lines.size() > kMaxLines) {
      set.notes.push_back(fmt::format("{} against throughput is not drawn: {} lines are too many",
                                      latency->words, lines.size()));
      continue;
    }
    LineChart chart{.name = figure_name(*latency, "throughput", ""),
                    .title = title_of(*latency, "throughput", "", sweep),
                    .x_label = with_unit(*rate),
                    .y_label = with_unit(*latency),
                    .x_column = rate->path,
                    .y_column = latency->path,
                    .y_unit = latency->divisor,
                    .log_y_where_wide = true};
    std::size_t marks = 0;
    for (const auto& [shared, members] : lines) {
      std::vector<std::pair<double, ChartPoint>> by_load;
      for (const std::size_t point : members) {
        const json load = sweep.value(*x.column, point);
        const auto at = sweep.measure(*rate, point);
        const auto y = sweep.measure(*latency, point);
        if (load.is_null() || !at || !y || sweep.ran_out(point)) continue;
        by_load.emplace_back(number_of(load)->value, ChartPoint{*at, *y});
      }
      std::stable_sort(by_load.begin(), by_load.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
      ChartLine line{.label = shared_words(line_axes, shared)};
      if (line.label.empty()) line.label = latency->words;
      for (const auto& [load, at] : by_load) line.points.push_back(at);
      marks += line.points.size();
      if (!line.points.empty()) chart.lines.push_back(std::move(line));
    }
    if (marks < 2) continue;
    set.figures.push_back(draw(chart));
    set.figures.back().kind = "tradeoff";
  }
}

void add_heat_maps(const ScenarioSweep& sweep, const SweepMeasure& measure, const Axis& x,
                   const Axis& y, const std::vector<const Axis*>& others, FigureSet& set) {
  std::vector<std::size_t> points(sweep.size());
  for (std::size_t i = 0; i < points.size(); ++i) points[i] = i;
  const auto figures = grouped(sweep, others, points);
  const std::string over = fmt::format("{} and {}", x.column->name, y.column->name);
  if (figures.size() > kMaxFigures) {
    set.notes.push_back(fmt::format("{} against {} is not drawn: it would need {} figures",
                                    measure.words, over, figures.size()));
    return;
  }
  for (const auto& [shared, members] : figures) {
    const std::string words = shared_words(others, shared);
    HeatMap map{.name = figure_name(measure, over, words),
                .title = title_of(measure, over, words, sweep),
                .x_label = x.label(),
                .y_label = y.label(),
                .z_label = with_unit(measure),
                .x_column = x.column->name,
                .y_column = y.column->name,
                .z_column = measure.path,
                .z_unit = measure.divisor};
    for (const json& value : x.values) map.x_values.push_back(tick_text(value));
    for (const json& value : y.values) map.y_values.push_back(tick_text(value));
    map.values.assign(y.values.size(), std::vector<std::optional<double>>(x.values.size()));
    std::size_t filled = 0;
    for (const std::size_t point : members) {
      const json at_x = sweep.value(*x.column, point);
      const json at_y = sweep.value(*y.column, point);
      const auto value = sweep.measure(measure, point);
      if (at_x.is_null() || at_y.is_null() || !value || sweep.ran_out(point)) continue;
      map.values[y.index(at_y)][x.index(at_x)] = value;
      ++filled;
    }
    if (filled < 2) continue;  // nothing to show
    set.figures.push_back(draw(map));
    set.figures.back().kind = "heat_map";
  }
}

void add_bars(const ScenarioSweep& sweep, const SweepMeasure& measure,
              const std::vector<const Axis*>& axes, FigureSet& set) {
  const PartStyle style{"", {"#0072B2", 0, true}};
  BarChart chart{.name = fmt::format("{}_bars", slug(measure.path)),
                 .title = fmt::format("{}: {}", measure.words, sweep.plan().name()),
                 .x_label = with_unit(measure),
                 .column = measure.path,
                 .unit = measure.divisor};
  chart.title.front() =
      static_cast<char>(std::toupper(static_cast<unsigned char>(chart.title.front())));
  const PartStyle part{measure.words, style.fill};
  chart.styles = {part};
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    const auto value = sweep.measure(measure, i);
    ChartBar bar{.label = shared_words(axes, shared_of(sweep, axes, i))};
    const bool known = value && !sweep.ran_out(i);
    bar.parts.emplace_back(part, known ? *value : 0.0);
    bar.inside_numbers = false;
    bar.end_text = known              ? fmt::format("{:.4g}", *value / measure.divisor)
                   : sweep.ran_out(i) ? "out of memory"
                                      : "skipped";
    chart.bars.push_back(std::move(bar));
  }
  set.figures.push_back(draw(chart));
  set.figures.back().kind = "bars";
}

}  // namespace

FigureSet scenario_sweep_figures(const ScenarioSweep& sweep) {
  FigureSet set;
  std::vector<Axis> all;
  for (const SweepColumn& column : sweep.columns()) {
    Axis axis = axis_of(sweep, column);
    if (axis.values.size() > 1) all.push_back(std::move(axis));
  }
  std::vector<const Axis*> numbers, words;
  for (const Axis& axis : all) (axis.numeric ? numbers : words).push_back(&axis);
  const std::size_t n = std::min(sweep.measures().size(), kMaxMeasures);
  for (std::size_t m = 0; m < n; ++m) {
    const SweepMeasure& measure = sweep.measures()[m];
    if (numbers.empty()) {
      if (words.empty()) continue;
      if (sweep.size() > kMaxBars) {
        set.notes.push_back(
            fmt::format("{} is not drawn: {} bars are too many", measure.words, sweep.size()));
      } else {
        add_bars(sweep, measure, words, set);
      }
    } else if (numbers.size() == 2 && !sweep.plan().is_random()) {
      add_heat_maps(sweep, measure, *numbers[0], *numbers[1], words, set);
    } else if (numbers.size() == 1 || !sweep.plan().is_random()) {
      // x is the number with the most values; the other numbers distinguish lines and figures.
      const auto longest = std::max_element(
          numbers.begin(), numbers.end(),
          [](const Axis* a, const Axis* b) { return a->values.size() < b->values.size(); });
      std::vector<const Axis*> others = words;
      for (const Axis* axis : numbers) {
        if (axis != *longest) others.push_back(axis);
      }
      add_line_figures(sweep, measure, **longest, others, set);
    } else {
      set.notes.push_back(fmt::format(
          "{} is not drawn: random samples of several numbers form no line", measure.words));
    }
  }
  if (numbers.size() == 1) add_tradeoffs(sweep, *numbers.front(), words, set);
  return set;
}

}  // namespace kvsim
