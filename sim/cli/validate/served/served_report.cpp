#include "sim/cli/validate/served/served_report.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "sim/report/text/csv_cells.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "validation/served/served_tables.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }
std::string percent(const std::optional<double>& share) {
  return share ? percent(*share) : std::string{};
}
std::string factor(const std::optional<double>& width) {
  return width ? fmt::format("{:.2f}", *width) : std::string{};
}

ordered_json number_or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json(nullptr);
}

using Name = std::function<std::string(const ServedComparison&, const ScoredRun&)>;

/// One table of errors: a line per metric and name, lines with the most values first.
std::string errors_table(const ServedScore& score, const std::string& title, const Name& name,
                         std::size_t width) {
  std::map<std::pair<std::string, std::string>, std::vector<const ServedComparison*>> groups;
  for (const ServedComparison& c : score.comparisons) {
    if (const std::string word = name(c, score.runs[c.run]); !word.empty()) {
      groups[{c.metric, word}].push_back(&c);
    }
  }
  Table table{{{title, Table::Align::kLeft},
               {"metric", Table::Align::kLeft},
               {"values"},
               {"median", Table::Align::kRight, "%"},
               {"p90", Table::Align::kRight, "%"},
               {"bias", Table::Align::kRight, "%"},
               {"in 90 %", Table::Align::kRight, "%"},
               {"width", Table::Align::kRight, "", true},
               {"score", Table::Align::kRight, "", true}}};
  for (const auto& [key, of] : groups) {
    const ServedGroup group = group_of(of);
    table.add_row({key.second, key.first, fmt::format("{}", group.n), percent(group.median_ape),
                   percent(group.p90_ape), fmt::format("{:+.1f}", 100 * group.bias),
                   percent(group.coverage), factor(group.width_median),
                   factor(group.interval_score)});
  }
  return groups.empty() ? std::string{} : table.str(width) + "\n";
}

/// Whether tables by engine, GPU, … show this value: the statistic of a metric that most runs have.
bool is_central(const ServedComparison& c) {
  return c.stat == "mean" || c.stat == "median" || c.stat == "total";
}

std::string counts(const std::map<std::string, std::size_t>& of, std::size_t width) {
  std::vector<std::pair<std::string, std::size_t>> sorted{of.begin(), of.end()};
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  constexpr std::size_t kIndent = 9;
  std::string out;
  for (const auto& [text, n] : sorted) {
    out += fmt::format("  {:5}  {}", n, paragraph(text, width, kIndent));
  }
  return out;
}

/// Sources with a median error of a metric above 30 %, with the known causes.
std::string far_off(const ServedScore& score, std::size_t width) {
  constexpr double kFar = 0.3;
  constexpr std::size_t kMin = 5;
  std::map<std::string, std::map<std::string, std::vector<const ServedComparison*>>> groups;
  for (const ServedComparison& c : score.comparisons) {
    if (is_central(c)) groups[score.runs[c.run].source][c.metric].push_back(&c);
  }
  std::map<std::pair<std::string, std::string>, std::string> causes;  // source, cause: its metrics
  for (const auto& [source, metrics] : groups) {
    for (const auto& [metric, of] : metrics) {
      const ServedGroup group = group_of(of);
      if (group.n < kMin || group.median_ape <= kFar) continue;
      const ServedReason* reason = find_served_reason(source, metric);
      std::string& text =
          causes[{source, reason == nullptr ? "no cause is known" : reason->reason}];
      text +=
          fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", metric, 100 * group.median_ape);
    }
  }
  if (causes.empty()) return {};
  constexpr std::size_t kIndent = 4;
  std::string out = "\nfurthest off: median errors above 30 %, and causes\n";
  for (const auto& [key, text] : causes) {
    out += fmt::format("  {}\n    {}    {}", key.first, paragraph(text, width, kIndent),
                       paragraph(key.second, width, kIndent));
  }
  return out;
}

std::string runs_table(const ServedScore& score, std::size_t width) {
  Table table{{{"run", Table::Align::kLeft},
               {"metric", Table::Align::kLeft},
               {"measured"},
               {"predicted"},
               {"error", Table::Align::kRight, "%"},
               {"low", Table::Align::kRight, "", true},
               {"high", Table::Align::kRight, "", true},
               {"load", Table::Align::kLeft, "", true}}};
  const auto bound = [](const std::optional<double>& x) {
    return x ? fmt::format("{:.4g}", *x) : std::string{};
  };
  for (const ServedComparison& c : score.comparisons) {
    const ScoredRun& run = score.runs[c.run];
    table.add_row({run.run.id, fmt::format("{} {}", c.metric, c.stat),
                   fmt::format("{:.4g}", c.measured), fmt::format("{:.4g}", c.predicted),
                   fmt::format("{:+.1f}", 100 * c.error()), bound(c.low), bound(c.high), run.load});
  }
  std::string out = table.str(width);
  for (const ScoredRun& run : score.runs) {
    if (!run.reason().empty()) out += fmt::format("{}: {}\n", run.run.id, run.reason());
  }
  return out + "\n";
}

ordered_json group_json(const ServedGroup& group, bool pooled) {
  ordered_json out{{"metric", group.metric},
                   {"stat", group.stat},
                   {"complete", group.complete},
                   {"load", group.load}};
  if (!pooled) {
    out["engine"] = group.engine;
    out["version"] = group.version;
    out["gpu"] = group.gpu;
    out["source"] = group.source;
  }
  out["n"] = group.n;
  out["median_ape"] = group.median_ape;
  out["p90_ape"] = group.p90_ape;
  out["bias"] = group.bias;
  out["coverage"] = number_or_null(group.coverage);
  out["width_median"] = number_or_null(group.width_median);
  out["interval_score"] = number_or_null(group.interval_score);
  return out;
}

ordered_json run_json(const ScoredRun& run) {
  ordered_json out{{"run", run.run.id}, {"expressed", run.reason().empty()}};
  if (!run.reason().empty()) {
    out["reason"] = run.reason();
    return out;
  }
  out["client"] = run.mapped.client->name;
  out["complete"] = run.mapped.complete;
  out["load"] = run.load;
  out["load_share"] = number_or_null(run.predicted.load);
  out["assumed"] = run.mapped.settings.assumed;
  for (const std::string& text : run.mapped.workload.assumed) out["assumed"].push_back(text);
  out["ignored"] = run.mapped.settings.ignored;
  return out;
}

}  // namespace

std::string served_text(const ServedScore& score, bool rows, std::size_t width) {
  std::string out;
  if (rows) out += runs_table(score, width);
  out += errors_table(
      score, "statistic", [](const ServedComparison& c, const ScoredRun&) { return c.stat; },
      width);
  const auto central = [&](const std::string& title, const auto& name) {
    out += errors_table(
        score, title,
        [&](const ServedComparison& c, const ScoredRun& run) {
          return is_central(c) ? name(run) : std::string{};
        },
        width);
  };
  central("load", [](const ScoredRun& run) { return run.load; });
  central("settings", [](const ScoredRun& run) {
    return std::string{run.mapped.complete ? "all stated" : "not all stated"};
  });
  central("engine", [](const ScoredRun& run) {
    return run.mapped.settings.engine->name + " " + run.mapped.settings.version;
  });
  central("GPU", [](const ScoredRun& run) { return run.mapped.settings.gpu->name; });
  central("source", [](const ScoredRun& run) { return run.source; });
  out += paragraph(
      "errors are (predicted - measured) / measured; median and p90 of their absolute values; "
      "bias: "
      "their median; in 90 %: share of measured values within the 90 % interval; width: its high "
      "over its low end (median); score: mean interval score over the measured value; tables by "
      "load and below have means, medians and totals",
      width);
  out += fmt::format("\nexpressed  {} of {} runs ({:.1f} %), {} values\n", score.expressed(),
                     score.runs.size(),
                     100.0 * static_cast<double>(score.expressed()) /
                         static_cast<double>(std::max<std::size_t>(1, score.runs.size())),
                     score.comparisons.size());
  if (score.open_runs > 0) {
    out += fmt::format(
        "open loops {} with a measured throughput; {} did not keep up with their rate; predicted\n"
        "           to saturate and did not: {}, the reverse: {}\n",
        score.open_runs, score.saturated, score.saturated_only_predicted,
        score.saturated_only_measured);
  }
  out += far_off(score, width);
  if (!score.reasons.empty()) out += "\nnot expressed\n" + counts(score.reasons, width);
  if (!score.ignored.empty()) {
    out += "\noptions without a key in scenarios\n" + counts(score.ignored, width);
  }
  if (!score.uncompared.empty()) out += "\nvalues not compared\n" + counts(score.uncompared, width);
  return out;
}

ordered_json served_json(const ServedScore& score, const std::string& file, bool rows) {
  ordered_json out{{"schema", "kvsim.validate-served/1"},
                   {"file", file},
                   {"runs_total", score.runs.size()},
                   {"runs_expressed", score.expressed()}};
  out["reasons"] = ordered_json::object();
  for (const auto& [reason, n] : score.reasons) out["reasons"][reason] = n;
  out["saturation"] = {{"open_runs", score.open_runs},
                       {"saturated", score.saturated},
                       {"only_predicted", score.saturated_only_predicted},
                       {"only_measured", score.saturated_only_measured}};
  out["pooled"] = ordered_json::array();
  for (const ServedGroup& group : score.pooled) out["pooled"].push_back(group_json(group, true));
  out["groups"] = ordered_json::array();
  for (const ServedGroup& group : score.groups) out["groups"].push_back(group_json(group, false));
  if (!rows) return out;
  out["runs"] = ordered_json::array();
  for (const ScoredRun& run : score.runs) out["runs"].push_back(run_json(run));
  out["values"] = ordered_json::array();
  for (const ServedComparison& c : score.comparisons) {
    out["values"].push_back({{"run", score.runs[c.run].run.id},
                             {"metric", c.metric},
                             {"stat", c.stat},
                             {"measured", c.measured},
                             {"predicted", c.predicted},
                             {"error", c.error()},
                             {"low", number_or_null(c.low)},
                             {"high", number_or_null(c.high)}});
  }
  return out;
}

std::string served_comparisons_csv(const ServedScore& score) {
  std::string out =
      "run,source,engine,version,gpu,model,client,complete,load,load_share,metric,stat,measured,"
      "predicted,error,interval_low,interval_high\n";
  const auto number = [](const std::optional<double>& value) {
    return value ? csv_number(*value) : std::string{};
  };
  for (const ServedComparison& c : score.comparisons) {
    const ScoredRun& run = score.runs[c.run];
    const ServedSettings& settings = run.mapped.settings;
    const std::vector<std::string> cells{csv_field(run.run.id),
                                         csv_field(run.source),
                                         csv_field(settings.engine->name),
                                         csv_field(settings.version),
                                         csv_field(settings.gpu->name),
                                         csv_field(settings.llm->name),
                                         csv_field(run.mapped.client->name),
                                         run.mapped.complete ? "1" : "0",
                                         run.load,
                                         number(run.predicted.load),
                                         csv_field(c.metric),
                                         c.stat,
                                         csv_number(c.measured),
                                         csv_number(c.predicted),
                                         csv_number(c.error()),
                                         number(c.low),
                                         number(c.high)};
    out += fmt::format("{}\n", fmt::join(cells, ","));
  }
  return out;
}

std::string served_runs_csv(const ServedScore& score) {
  std::string out = "run,expressed,reason,assumed,ignored\n";
  for (const ScoredRun& run : score.runs) {
    std::vector<std::string> assumed = run.mapped.settings.assumed;
    const auto& more = run.mapped.workload.assumed;
    assumed.insert(assumed.end(), more.begin(), more.end());
    out +=
        fmt::format("{},{},{},{},{}\n", csv_field(run.run.id), run.reason().empty() ? 1 : 0,
                    csv_field(run.reason()), csv_field(fmt::format("{}", fmt::join(assumed, "; "))),
                    csv_field(fmt::format("{}", fmt::join(run.mapped.settings.ignored, "; "))));
  }
  return out;
}

std::string two_loads_text(const ServedScore& score, const std::vector<UnseenValue>& values,
                           std::size_t width) {
  std::map<std::pair<std::string, std::string>, std::vector<const UnseenValue*>> groups;
  for (const UnseenValue& value : values) {
    if (value.of.before.predicted <= 0 || value.of.after.predicted <= 0) continue;
    groups[{"all", value.metric}].push_back(&value);
    groups[{score.runs[value.run].source, value.metric}].push_back(&value);
  }
  Table table{{{"source", Table::Align::kLeft},
               {"metric", Table::Align::kLeft},
               {"values"},
               {"before", Table::Align::kRight, "median %"},
               {"before", Table::Align::kRight, "in 90 %"},
               {"before", Table::Align::kRight, "width"},
               {"after", Table::Align::kRight, "median %"},
               {"after", Table::Align::kRight, "in 90 %"},
               {"after", Table::Align::kRight, "width"}}};
  for (const auto& [key, of] : groups) {
    std::vector<std::string> cells{key.first, key.second, fmt::format("{}", of.size())};
    for (BenchOutcome::Side BenchOutcome::*side : {&BenchOutcome::before, &BenchOutcome::after}) {
      std::vector<const ServedComparison*> compared;
      std::vector<ServedComparison> made;
      made.reserve(of.size());
      for (const UnseenValue* value : of) {
        const BenchOutcome::Side& at = value->of.*side;
        made.push_back({.run = value->run,
                        .metric = value->metric,
                        .stat = "",
                        .measured = value->measured,
                        .predicted = at.predicted,
                        .low = at.low,
                        .high = at.high});
        compared.push_back(&made.back());
      }
      const ServedGroup group = group_of(compared);
      cells.insert(cells.end(), {percent(group.median_ape), percent(group.coverage),
                                 factor(group.width_median)});
    }
    table.add_row(std::move(cells));
  }
  return table.str(width);
}

}  // namespace kvsim
