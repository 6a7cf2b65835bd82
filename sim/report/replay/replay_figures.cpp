#include "sim/report/replay/replay_figures.hpp"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/line_checks.hpp"
#include "sim/report/figure/line_names.hpp"
#include "sim/report/replay/error_figures.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

/// Names of a replay's methods. If all budgets are equal, the budget is in the title instead.
LineNames replay_names(const ReplayResult& replay) {
  std::set<std::string> methods, budgets;
  for (const ReplayMethod& method : replay.methods) {
    methods.insert(method.name);
    if (method.budget) budgets.insert(budget_text(*method.budget));
  }
  const bool shared = budgets.size() == 1 && methods.size() == replay.methods.size();
  LineNames names;
  if (shared) names.shared = ", budget " + *budgets.begin();
  for (const ReplayMethod& method : replay.methods) {
    names.labels.push_back(
        shared || !method.budget ? method.name : method.name + " " + budget_text(*method.budget));
  }
  return names;
}

/// A series over steps: means of every `stride` steps, as many as a figure can show.
template <class Value>
std::vector<ChartPoint> over_steps(const std::vector<ReplayStep>& series, std::size_t stride,
                                   Value value) {
  std::vector<ChartPoint> points;
  for (std::size_t at = 0; at < series.size(); at += stride) {
    const std::size_t end = std::min(series.size(), at + stride);
    ChartPoint mean;
    for (std::size_t i = at; i < end; ++i) {
      mean.x += static_cast<double>(series[i].step);
      mean.y += value(series[i]);
    }
    const auto n = static_cast<double>(end - at);
    points.push_back({mean.x / n, mean.y / n});
  }
  return points;
}

bool is_measured(const ReplayStep& step) { return !std::isnan(step.rel_error); }

/// Mean errors of `stride` steps each or, if only some steps were measured, of each run of measured
/// steps.
std::vector<ChartPoint> errors_over_steps(const std::vector<ReplayStep>& series, bool sampled,
                                          std::size_t stride) {
  const auto error = [](const ReplayStep& s) { return s.rel_error; };
  if (!sampled) return over_steps(series, stride, error);
  std::vector<ChartPoint> points;
  for (auto first = std::find_if(series.begin(), series.end(), is_measured);
       first != series.end();) {
    const auto end = std::find_if_not(first, series.end(), is_measured);
    const std::vector<ReplayStep> run{first, end};
    points.push_back(over_steps(run, run.size(), error).front());
    first = std::find_if(end, series.end(), is_measured);
  }
  return points;
}

/// The methods that fit in a figure over steps: the full cache and the methods on the Pareto front
/// of error against bytes, the smallest first.
std::vector<bool> lines_with_room(const ReplayResult& replay) {
  constexpr std::ptrdiff_t kMaxLines = 12;  // that can be distinguished
  const std::size_t n = replay.methods.size();
  std::vector<bool> drawn(n, n <= static_cast<std::size_t>(kMaxLines));
  if (drawn.empty() || drawn.front()) return drawn;
  const auto beats = [](const ReplayMethod& a, const ReplayMethod& b) {
    return a.bytes_held_final <= b.bytes_held_final && a.rel_error_mean <= b.rel_error_mean &&
           (a.bytes_held_final < b.bytes_held_final || a.rel_error_mean < b.rel_error_mean);
  };
  std::vector<std::size_t> front;
  for (std::size_t i = 0; i < n; ++i) {
    const ReplayMethod& one = replay.methods[i];
    const bool beaten = std::any_of(replay.methods.begin(), replay.methods.end(),
                                    [&](const ReplayMethod& other) { return beats(other, one); });
    if (!beaten || one.name == "full") front.push_back(i);
  }
  std::stable_sort(front.begin(), front.end(), [&](std::size_t a, std::size_t b) {
    const auto key = [&](std::size_t i) {
      return replay.methods[i].name == "full" ? -1 : replay.methods[i].bytes_held_final;
    };
    return key(a) < key(b);
  });
  for (std::size_t i = 0; i < std::min<std::size_t>(front.size(), kMaxLines); ++i) {
    drawn[front[i]] = true;
  }
  return drawn;
}

}  // namespace

FigureSet replay_figures(const ReplayResult& replay) {
  constexpr std::size_t kMaxSteps = 128;  // more would blur in print
  constexpr std::size_t kMaxErrors = 32;  // errors vary from token to token; means show trends
  FigureSet set;
  const LineNames names = replay_names(replay);
  const std::vector<bool> drawn = lines_with_room(replay);
  const auto lines = std::count(drawn.begin(), drawn.end(), true);
  std::string about = fmt::format("{} ({}){}", replay.trace, replay.source, names.shared);
  if (static_cast<std::size_t>(lines) < drawn.size()) {
    about += fmt::format(" ({} of {}: the least error at their size)", lines, drawn.size());
  }
  LineChart error{.name = "error_vs_step",
                  .title = "Attention output error over decode steps: trace " + about,
                  .x_label = "decode step",
                  .y_label = "relative error (fraction)",
                  .x_column = "step",
                  .y_column = "rel_error",
                  .log_y_where_wide = true};
  LineChart held{.name = "bytes_vs_step",
                 .title = "Cache held over decode steps: trace " + about,
                 .x_label = "decode step",
                 .x_column = "step",
                 .y_column = "bytes_held"};
  LineChart layers{.name = "replay_cache_per_layer",
                   .title = "Cache per layer after the last step: trace " + about,
                   .x_label = "layer",
                   .x_column = "layer",
                   .y_column = "bytes_final"};
  for (std::size_t i = 0; i < replay.methods.size(); ++i) {
    if (!drawn[i]) continue;
    const ReplayMethod& method = replay.methods[i];
    const std::string& label = names.labels[i];
    const std::size_t stride = (method.series.size() + kMaxSteps - 1) / kMaxSteps;
    const std::size_t error_stride = (method.series.size() + kMaxErrors - 1) / kMaxErrors;
    if (stride > 0) {
      const bool exact =
          std::any_of(method.series.begin(), method.series.end(), is_measured) &&
          std::none_of(method.series.begin(), method.series.end(),
                       [](const ReplayStep& s) { return s.rel_error >= kRoundingError; });
      // Rounding errors would extend a logarithmic axis by five decades.
      error.lines.push_back({exact ? label + " (below 0.00001)" : label});
      if (!exact) {
        error.lines.back().points =
            errors_over_steps(method.series, replay.steps.has_value(), error_stride);
      }
      if (stride > 1) held.x_label = fmt::format("decode step (means of {} steps)", stride);
      if (replay.steps) {
        error.x_label = "decode step (means of runs of neighbours)";
      } else if (error_stride > 1) {
        error.x_label = fmt::format("decode step (means of {} steps)", error_stride);
      }
      held.lines.push_back(
          {label,
           over_steps(method.series, stride,
                      [](const ReplayStep& s) { return static_cast<double>(s.bytes_held); }),
           {}});
    }
    ChartLine line{.label = label};
    for (const ReplayCell& cell : method.layers) {
      line.points.push_back(
          {static_cast<double>(cell.layer), static_cast<double>(cell.bytes_final)});
    }
    if (!line.points.empty()) layers.lines.push_back(std::move(line));
  }
  fit_byte_unit(held, "keys, values and side data");
  fit_byte_unit(layers, "keys, values and side data");
  for (const LineChart* chart : {&error, &held, &layers}) {
    if (!shows_something(*chart) || (chart == &layers && !values_differ(*chart))) continue;
    set.figures.push_back(draw(*chart));
    set.figures.back().kind = chart->name;
  }
  std::vector<ErrorMark> marks;
  for (const ReplayMethod& method : replay.methods) {
    if (method.bytes_full_final <= 0) continue;
    ErrorMark mark{.method = method.name, .error = method.rel_error_mean};
    mark.held =
        static_cast<double>(method.bytes_held_final) / static_cast<double>(method.bytes_full_final);
    if (method.bytes_full_read_total > 0) {
      mark.read = method.bytes_read_total / method.bytes_full_read_total;
      mark.reads_part = method.entries_read_share < 1;
    }
    marks.push_back(std::move(mark));
  }
  add_error_figures(marks, fmt::format("trace {} ({})", replay.trace, replay.source), set);
  return set;
}

}  // namespace kvsim
