#include "sim/report/figures.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/report/bar_figures.hpp"
#include "sim/report/chart.hpp"
#include "sim/report/error_figures.hpp"
#include "sim/report/line_names.hpp"
#include "sim/report/point_names.hpp"
#include "sim/report/serve_figures.hpp"
#include "sim/report/text.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMostFiles = 12;  // of one kind
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGiB = 1024.0 * kMiB;

double as_double(Bytes bytes) { return static_cast<double>(bytes.count()); }

std::string oom_callout(const std::string& label, const OomEvent& oom) {
  if (oom.phase == "load") return label + ": OOM on loading";
  if (oom.phase == "prefill") {
    return fmt::format("{}: OOM in prefill ({} tokens)", label, with_commas(oom.tokens));
  }
  return fmt::format("{}: OOM at {} tokens", label, with_commas(oom.tokens));
}

/// The levels of usable HBM of some points, each value once.
std::vector<ChartLevel> hbm_levels(const RunReport& report,
                                   const std::vector<std::size_t>& points) {
  std::set<std::int64_t> values;
  for (const std::size_t i : points) values.insert(report.results[i].usable_hbm.count());
  std::vector<ChartLevel> levels;
  for (const std::int64_t value : values) {
    const auto bytes = static_cast<double>(value);
    levels.push_back({fmt::format("usable HBM {:.1f} GiB", bytes / kGiB), bytes});
  }
  return levels;
}

constexpr const char* kOutOfMemory = "out of memory";

LineChart memory_chart(const RunReport& report, const PointGroup& group) {
  LineChart chart{.name = "memory_vs_length" + group.suffix,
                  .title = "Peak memory versus length: " + group.description,
                  .x_label = "length of a sequence, prompt and output (tokens)",
                  .y_label = "HBM (GiB)",
                  .x_column = "tokens",
                  .y_column = "peak_bytes",
                  .y_unit = kGiB,
                  .lone_mark_label = "prefill peak (open)",
                  .end_label = kOutOfMemory,
                  .levels = hbm_levels(report, group.points)};
  for (std::size_t i = 0; i < group.points.size(); ++i) {
    const StaticResult& result = report.results[group.points[i]];
    ChartLine line{.label = group.labels[i]};
    const bool prefilled = !result.oom || result.oom->phase == "decode";
    std::optional<MemoryEnds> ends;
    const StaticSpec& spec = report.scenario->points[group.points[i]].spec;
    if (result.intervals && spec.stack != nullptr) {
      ends = memory_ends(*spec.stack, spec.tensor_parallel);
    }
    for (const StaticSample& s : result.timeline) {
      if (s.step == 0) continue;
      const auto tokens = static_cast<double>(s.tokens);
      line.points.push_back({tokens, as_double(s.peak)});
      if (!ends) continue;
      const BytesInterval likely = peak_interval(*ends, peak_parts(spec, result, s.peak, s.kv));
      line.band.push_back({tokens, as_double(likely.low), as_double(likely.high)});
    }
    if (prefilled && !result.timeline.empty() && result.timeline.front().step == 0) {
      line.lone_mark = {static_cast<double>(result.timeline.front().tokens),
                        as_double(result.prefill_peak)};
    }
    if (result.oom) {
      const auto tokens = static_cast<double>(result.oom->tokens);
      if (prefilled) {
        line.points.push_back(
            {tokens, as_double(result.usable_hbm - result.oom->free + result.oom->requested)});
      }
      line.end = {tokens, as_double(result.usable_hbm)};
      chart.callouts.push_back(
          {oom_callout(group.labels[i], *result.oom), *line.end, chart.lines.size()});
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

LineChart throughput_chart(const RunReport& report, const PointGroup& group) {
  LineChart chart{.name = "throughput_vs_length" + group.suffix,
                  .title = "Decode throughput versus length: " + group.description,
                  .x_label = "length of a sequence, prompt and output (tokens)",
                  .y_label = "decode, whole batch (tok/s)",
                  .x_column = "tokens",
                  .y_column = "tok_s",
                  .end_label = kOutOfMemory};
  for (std::size_t i = 0; i < group.points.size(); ++i) {
    ChartLine line{.label = group.labels[i]};
    for (const StaticSample& s : report.results[group.points[i]].timeline) {
      if (s.step > 0 && s.tok_s > 0)
        line.points.push_back({static_cast<double>(s.tokens), s.tok_s});
    }
    // A line without points keeps its place, so that a method has one colour in all figures.
    if (const auto& oom = report.results[group.points[i]].oom) {
      if (line.points.empty()) line.label += fmt::format(" (OOM in {})", oom->phase);
      // There is no rate where there was no step: such a cross stands on the axis.
      line.end = line.points.empty() ? ChartPoint{static_cast<double>(oom->tokens), 0}
                                     : line.points.back();
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

/// MiB below 4 GiB, GiB above: the unit in which `largest` bytes read best.
std::pair<double, std::string> byte_unit(double largest) {
  constexpr double kManyMiB = 4096;
  if (largest >= kManyMiB * kMiB) return {kGiB, "GiB"};
  if (largest >= kMiB) return {kMiB, "MiB"};
  return {1024.0, "KiB"};
}

void fit_byte_unit(LineChart& chart, const std::string& what) {
  double largest = 0;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint p : line.points) largest = std::max(largest, p.y);
  }
  const auto [unit, name] = byte_unit(largest);
  chart.y_unit = unit;
  chart.y_label = fmt::format("{} ({})", what, name);
}

LineChart layers_chart(const RunReport& report, const PointGroup& group) {
  LineChart chart{.name = "cache_per_layer" + group.suffix,
                  .title = "Cache per layer at the end: " + group.description,
                  .x_label = "layer",
                  .x_column = "layer",
                  .y_column = "kv_bytes"};
  for (std::size_t i = 0; i < group.points.size(); ++i) {
    const StaticResult& result = report.results[group.points[i]];
    ChartLine line{.label = group.labels[i]};
    const bool has_end = !result.oom || result.oom->phase == "decode";
    for (std::size_t layer = 0; has_end && layer < result.kv_bytes_per_layer.size(); ++layer) {
      line.points.push_back(
          {static_cast<double>(layer), as_double(result.kv_bytes_per_layer[layer])});
    }
    if (result.oom) {
      line.label += has_end ? " (at its OOM)" : fmt::format(" (OOM in {})", result.oom->phase);
    }
    chart.lines.push_back(std::move(line));
  }
  fit_byte_unit(chart, "keys, values and side data");
  return chart;
}

bool shows_something(const LineChart& chart) {
  return std::any_of(chart.lines.begin(), chart.lines.end(),
                     [](const ChartLine& line) { return line.points.size() >= 2; });
}

/// Points that are the same but for their lengths, shortest first.
struct Sweep {
  std::string label;
  std::vector<std::size_t> points;
};

double final_tokens(const Scenario& scenario, std::size_t point) {
  const StaticSpec& spec = scenario.points[point].spec;
  return static_cast<double>(spec.prompt_tokens + spec.output_tokens);
}

/// The sweeps of at least 3 lengths within a group; fewer are no line.
std::vector<Sweep> sweeps_of(const Scenario& scenario, const PointGroup& group) {
  constexpr std::size_t kFewestLengths = 3;
  std::vector<nlohmann::ordered_json> identity;
  std::vector<Sweep> sweeps;
  for (const std::size_t i : group.points) {
    nlohmann::ordered_json mine = scenario.points[i].keys;
    mine.erase("prompt_tokens");
    mine.erase("output_tokens");
    const auto found = std::find(identity.begin(), identity.end(), mine);
    const auto at = static_cast<std::size_t>(found - identity.begin());
    if (found == identity.end()) {
      sweeps.emplace_back();
      identity.push_back(std::move(mine));
    }
    sweeps[at].points.push_back(i);
  }
  for (Sweep& sweep : sweeps) {
    std::stable_sort(sweep.points.begin(), sweep.points.end(), [&](std::size_t a, std::size_t b) {
      return final_tokens(scenario, a) < final_tokens(scenario, b);
    });
  }
  std::erase_if(sweeps, [&](const Sweep& sweep) {
    std::set<double> lengths;
    for (const std::size_t i : sweep.points) lengths.insert(final_tokens(scenario, i));
    return lengths.size() < kFewestLengths;
  });
  std::vector<std::size_t> firsts;
  for (const Sweep& sweep : sweeps) firsts.push_back(sweep.points.front());
  const LineNames names = line_names(scenario, firsts);
  for (std::size_t i = 0; i < sweeps.size(); ++i) sweeps[i].label = names.labels[i];
  return sweeps;
}

constexpr const char* kFinalTokens = "final length of a sequence, prompt and output (tokens)";

/// Callouts that say the same of several lines at one place become one that names them all.
void join_callouts(LineChart& chart) {
  std::vector<ChartCallout> joined;
  std::vector<std::vector<std::string>> names;
  for (const ChartCallout& callout : chart.callouts) {
    const std::string& name = chart.lines.at(callout.line.value()).label;
    const std::string said = callout.text.substr(name.size());
    std::size_t at = 0;
    while (at < joined.size() && (joined[at].text != said || joined[at].at.x != callout.at.x)) ++at;
    if (at == joined.size()) {
      joined.push_back({said, callout.at, callout.line});
      names.emplace_back();
    }
    names[at].push_back(name);
    if (names[at].size() > 1) joined[at].line.reset();
  }
  for (std::size_t i = 0; i < joined.size(); ++i) {
    const bool all = names[i].size() > 1 && names[i].size() == chart.lines.size();
    joined[i].text = (all ? fmt::format("all {}", names[i].size())
                          : fmt::format("{}", fmt::join(names[i], ", "))) +
                     joined[i].text;
  }
  chart.callouts = std::move(joined);
}

LineChart peak_sweep_chart(const RunReport& report, const PointGroup& group) {
  LineChart chart{.name = "peak_vs_final_length" + group.suffix,
                  .title = "Peak memory by final length: " + group.description,
                  .x_label = kFinalTokens,
                  .y_label = "HBM (GiB)",
                  .x_column = "tokens",
                  .y_column = "peak_hbm_bytes",
                  .y_unit = kGiB,
                  .end_label = kOutOfMemory,
                  .log_x_where_wide = true,
                  .levels = hbm_levels(report, group.points)};
  for (const Sweep& sweep : sweeps_of(*report.scenario, group)) {
    ChartLine line{.label = sweep.label};
    for (const std::size_t i : sweep.points) {
      const StaticResult& result = report.results[i];
      if (result.oom) {
        // Longer ones fail as well; the first tells the length that is left.
        line.end = {static_cast<double>(result.oom->tokens), as_double(result.usable_hbm)};
        chart.callouts.push_back(
            {oom_callout(sweep.label, *result.oom), *line.end, chart.lines.size()});
        break;
      }
      line.points.push_back({final_tokens(*report.scenario, i), as_double(result.peak_hbm)});
    }
    chart.lines.push_back(std::move(line));
  }
  join_callouts(chart);
  return chart;
}

LineChart throughput_sweep_chart(const RunReport& report, const PointGroup& group) {
  LineChart chart{.name = "throughput_vs_length" + group.suffix,
                  .title = "Decode throughput by final length: " + group.description,
                  .x_label = kFinalTokens,
                  .y_label = "decode, whole batch (tok/s)",
                  .x_column = "tokens",
                  .y_column = "decode_tok_s",
                  .end_label = "out of memory (no rate)",
                  .log_x_where_wide = true};
  for (const Sweep& sweep : sweeps_of(*report.scenario, group)) {
    ChartLine line{.label = sweep.label};
    for (const std::size_t i : sweep.points) {
      if (const auto& oom = report.results[i].oom) {
        line.end = {static_cast<double>(oom->tokens), 0};
        break;
      }
      if (!report.results[i].decode_tok_s) continue;
      line.points.push_back({final_tokens(*report.scenario, i), *report.results[i].decode_tok_s});
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
}

/// Names of a replay's methods; a budget that all share who have one stands in the title.
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

/// Layers that all hold the same tell nothing: to within a hundredth.
bool layers_differ(const LineChart& chart) {
  constexpr double kAlike = 0.01;
  return std::any_of(chart.lines.begin(), chart.lines.end(), [](const ChartLine& line) {
    const auto [low, high] =
        std::minmax_element(line.points.begin(), line.points.end(),
                            [](ChartPoint a, ChartPoint b) { return a.y < b.y; });
    return !line.points.empty() && high->y - low->y > kAlike * high->y;
  });
}

/// A series over steps, the mean of every `stride` of them: as many as a figure can show.
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

/// Of many methods those a figure over steps has room for: the full cache, and who is on the front
/// of error against bytes, the smallest first.
std::vector<bool> lines_with_room(const ReplayResult& replay) {
  constexpr std::ptrdiff_t kMostLines = 12;  // that can be told apart
  const std::size_t n = replay.methods.size();
  std::vector<bool> drawn(n, n <= static_cast<std::size_t>(kMostLines));
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
  for (std::size_t i = 0; i < std::min<std::size_t>(front.size(), kMostLines); ++i) {
    drawn[front[i]] = true;
  }
  return drawn;
}

}  // namespace

FigureSet replay_figures(const ReplayResult& replay) {
  constexpr std::size_t kMostSteps = 128;  // more is a blur in print
  constexpr std::size_t kMostErrors = 32;  // errors jump from token to token; trends show in means
  constexpr double kRounding = 1e-5;       // fp32 against itself in another order of sums
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
    const std::size_t stride = (method.series.size() + kMostSteps - 1) / kMostSteps;
    const std::size_t error_stride = (method.series.size() + kMostErrors - 1) / kMostErrors;
    if (stride > 0) {
      const bool exact = std::all_of(method.series.begin(), method.series.end(),
                                     [](const ReplayStep& s) { return s.rel_error < kRounding; });
      // What is rounding alone would stretch a logarithmic axis by five powers of ten.
      error.lines.push_back({exact ? label + " (below 1e-5)" : label});
      if (!exact) {
        error.lines.back().points = over_steps(method.series, error_stride,
                                               [](const ReplayStep& s) { return s.rel_error; });
      }
      if (stride > 1) held.x_label = fmt::format("decode step (means of {} steps)", stride);
      if (error_stride > 1) {
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
    if (!shows_something(*chart) || (chart == &layers && !layers_differ(*chart))) continue;
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

namespace {

void add_static_figures(const RunReport& report, FigureSet& set) {
  const Scenario& scenario = *report.scenario;
  const auto add_lines = [&](const std::string& kind,
                             LineChart (*make)(const RunReport&, const PointGroup&),
                             const std::vector<PointGroup>& groups) {
    std::size_t files = 0;
    std::size_t left_out = 0;
    for (const PointGroup& group : groups) {
      const LineChart chart = make(report, group);
      if (!shows_something(chart)) continue;
      if (kind == "cache_per_layer" && !layers_differ(chart)) continue;
      if (files == kMostFiles) {
        ++left_out;
        continue;
      }
      ++files;
      set.figures.push_back(draw(chart));
      set.figures.back().kind = kind;
    }
    if (left_out > 0) {
      set.notes.push_back(fmt::format("{} more figures of {} were left out", left_out, kind));
    }
  };
  const std::vector<PointGroup> whole = figure_groups(scenario, surrounding_keys_but_lengths());
  std::vector<PointGroup> groups = figure_groups(scenario, surrounding_keys());
  // What a sweep shows in one figure is not shown again in one for each length.
  std::set<std::size_t> swept;
  for (const PointGroup& group : whole) {
    for (const Sweep& sweep : sweeps_of(scenario, group)) {
      swept.insert(sweep.points.begin(), sweep.points.end());
    }
  }
  std::erase_if(groups, [&](const PointGroup& group) {
    return std::all_of(group.points.begin(), group.points.end(),
                       [&](std::size_t i) { return swept.contains(i); });
  });
  // Nor is a length that hardly changes: such a point is there for its rate, not for its course.
  std::erase_if(groups, [&](const PointGroup& group) {
    constexpr double kLeastGrowth = 0.05;
    return std::all_of(group.points.begin(), group.points.end(), [&](std::size_t i) {
      const StaticSpec& spec = scenario.points[i].spec;
      return static_cast<double>(spec.output_tokens) <
             kLeastGrowth * static_cast<double>(spec.prompt_tokens);
    });
  });
  add_lines("memory_vs_length", memory_chart, groups);
  add_lines("peak_vs_final_length", peak_sweep_chart, whole);
  add_lines("throughput_vs_length", throughput_chart, groups);
  add_lines("throughput_vs_length", throughput_sweep_chart, whole);
  add_bar_figures(report, set);
  add_lines("cache_per_layer", layers_chart, groups);
}

}  // namespace

FigureSet run_figures(const RunReport& report) {
  FigureSet set;
  const Scenario& scenario = *report.scenario;
  if (scenario.kind == "serve") {
    set = serve_figures(report);
  } else {
    add_static_figures(report, set);
  }
  if (report.replay) {
    FigureSet of_replay = replay_figures(*report.replay);
    for (Figure& figure : of_replay.figures) set.figures.push_back(std::move(figure));
  }
  return set;
}

FigureSet wanted_figures(FigureSet all, const Scenario& scenario) {
  if (!scenario.figures) return all;
  const std::vector<std::string>& wanted = *scenario.figures;
  if (wanted.empty()) return {};
  std::erase_if(all.figures, [&](const Figure& figure) {
    return std::find(wanted.begin(), wanted.end(), figure.kind) == wanted.end();
  });
  return all;
}

}  // namespace kvsim
