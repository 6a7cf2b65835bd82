#include "sim/report/batch/static_figures.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/report/batch/bar_figures.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/line_checks.hpp"
#include "sim/report/figure/line_names.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr std::size_t kMaxFiles = 12;  // per kind of figure
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

/// The distinct levels of usable HBM of some points.
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
      ends = memory_ends(*spec.stack, spec.gpus());
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
    // A line without points keeps its index, so that a method has one colour in all figures.
    if (const auto& oom = report.results[group.points[i]].oom) {
      if (line.points.empty()) line.label += fmt::format(" (OOM in {})", oom->phase);
      // Without a step there is no rate, so the cross is on the axis.
      line.end = line.points.empty() ? ChartPoint{static_cast<double>(oom->tokens), 0}
                                     : line.points.back();
    }
    chart.lines.push_back(std::move(line));
  }
  return chart;
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

/// Points that differ only in their lengths, shortest first.
struct Sweep {
  std::string label;
  std::vector<std::size_t> points;
};

double final_tokens(const Scenario& scenario, std::size_t point) {
  const StaticSpec& spec = scenario.points[point].spec;
  return static_cast<double>(spec.prompt_tokens + spec.output_tokens);
}

/// The sweeps of at least 3 lengths within a group; fewer points do not make a useful line.
std::vector<Sweep> sweeps_of(const Scenario& scenario, const PointGroup& group) {
  constexpr std::size_t kMinLengths = 3;
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
    return lengths.size() < kMinLengths;
  });
  std::vector<std::size_t> firsts;
  for (const Sweep& sweep : sweeps) firsts.push_back(sweep.points.front());
  const LineNames names = line_names(scenario, firsts);
  for (std::size_t i = 0; i < sweeps.size(); ++i) sweeps[i].label = names.labels[i];
  return sweeps;
}

constexpr const char* kFinalTokens = "final length of a sequence, prompt and output (tokens)";

/// Merges callouts with the same text at the same place into one that names all their lines.
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
        // Longer ones fail as well; the first one shows where memory runs out.
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

}  // namespace

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
      if (kind == "cache_per_layer" && !values_differ(chart)) continue;
      if (files == kMaxFiles) {
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
  // Points that are part of a sweep figure get no separate figure per length.
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
  // The same holds if the length hardly changes: such a point shows a rate, not growth.
  std::erase_if(groups, [&](const PointGroup& group) {
    constexpr double kMinGrowth = 0.05;
    return std::all_of(group.points.begin(), group.points.end(), [&](std::size_t i) {
      const StaticSpec& spec = scenario.points[i].spec;
      return static_cast<double>(spec.output_tokens) <
             kMinGrowth * static_cast<double>(spec.prompt_tokens);
    });
  });
  add_lines("memory_vs_length", memory_chart, groups);
  add_lines("peak_vs_final_length", peak_sweep_chart, whole);
  add_lines("throughput_vs_length", throughput_chart, groups);
  add_lines("throughput_vs_length", throughput_sweep_chart, whole);
  add_bar_figures(report, set);
  add_lines("cache_per_layer", layers_chart, groups);
}

}  // namespace kvsim
