#include "sim/report/report_page.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "sim/report/equal_bytes.hpp"
#include "sim/report/findings.hpp"
#include "sim/report/html/page.hpp"
#include "sim/report/line_names.hpp"
#include "sim/report/plan_report.hpp"
#include "sim/report/point_names.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/serve_measures.hpp"
#include "sim/report/serve_summary.hpp"
#include "sim/report/table.hpp"
#include "sim/report/text.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using PageTone = PageSentence::Tone;

constexpr std::size_t kOneLine = 1'000'000;     // columns: a sentence is not broken
constexpr std::size_t kSummaryWidth = 100;      // columns
constexpr std::size_t kMostPoints = 300;        // of a run or a sweep's table
constexpr std::size_t kMostExplained = 24;      // points with the terms of their time and peak
constexpr std::size_t kMostSamples = 96;        // of a point's timeline
constexpr std::size_t kMostSweepPoints = 2000;  // of a scenario sweep
constexpr std::size_t kMostCells = 60'000;      // heads of all methods
constexpr std::size_t kMostCharts = 96;
constexpr std::size_t kMostCandidatePoints = 4000;  // of a plan

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.starts_with("- ")) line.remove_prefix(2);
    if (!line.empty()) out.emplace_back(line);
  }
  return out;
}

/// The lines that begin with one of these words.
std::vector<PageSentence> lines_that_begin(const std::string& text,
                                           const std::vector<std::string_view>& words) {
  std::vector<PageSentence> out;
  for (std::string& line : lines_of(text)) {
    const bool wanted = std::any_of(words.begin(), words.end(),
                                    [&](std::string_view word) { return line.starts_with(word); });
    if (wanted) out.push_back({std::move(line)});
  }
  return out;
}

/// Charts of one kind side by side, in the order in which the figures stand.
ordered_json charts_json(const FigureSet& figures, std::vector<std::string>& cuts) {
  ordered_json out = ordered_json::array();
  for (const Figure& figure : figures.figures) {
    if (figure.page.is_null()) continue;
    if (out.size() == kMostCharts) {
      cuts.push_back(
          fmt::format("The first {} charts of {} are here.", kMostCharts, figures.figures.size()));
      break;
    }
    out.push_back({{"kind", figure.kind},
                   {"name", figure.name},
                   {"title", figure.title},
                   {"spec", figure.page}});
  }
  return out;
}

/// Names of what is shown, cleaned and no longer than a page can lay out. The scenario as run stays
/// as it is.
void bound_names(ordered_json& value, std::string_view key) {
  constexpr std::array<std::string_view, 9> kNames{"label", "name", "title",      "model", "gpu",
                                                   "of",    "best", "categories", "rows"};
  if (key == "scenario") return;
  if (value.is_string()) {
    if (std::find(kNames.begin(), kNames.end(), key) == kNames.end()) return;
    value = name_text(value.get_ref<const std::string&>(), 2 * kLongestName);
  } else if (value.is_array()) {
    for (ordered_json& item : value) bound_names(item, key);
  } else if (value.is_object()) {
    for (auto& [name, item] : value.items()) bound_names(item, name);
  }
}

ordered_json data_of(const char* kind, ordered_json document, const FigureSet& figures,
                     ordered_json extras, std::vector<std::string> cuts) {
  ordered_json out{{"schema", kPageSchema}, {"kind", kind}};
  out["kvsim"] = {{"version", kvsim_version()}};
  out["charts"] = charts_json(figures, cuts);
  out["document"] = std::move(document);
  out["extras"] = std::move(extras);
  out["left_out"] = cuts;
  bound_names(out, "");
  return out;
}

/// A document's points and their long lists, cut to what a page can hold.
void cut_points(ordered_json& document, std::vector<std::string>& cuts) {
  const auto points = document.find("points");
  if (points == document.end() || !points->is_array()) return;
  const std::size_t n = points->size();
  if (n > kMostPoints) {
    points->erase(points->begin() + kMostPoints, points->end());
    cuts.push_back(fmt::format("Tables have the first {} of {} points; result.json has all.",
                               kMostPoints, with_commas(static_cast<std::int64_t>(n))));
  }
  bool explained = false;
  for (std::size_t i = kMostExplained; i < points->size(); ++i) {
    ordered_json& point = (*points)[i];
    for (const char* key : {"time_terms", "peak_terms", "mean_iteration"}) {
      explained = point.erase(key) > 0 || explained;
    }
  }
  if (explained) {
    cuts.push_back(
        fmt::format("Operators and terms of memory are of the first {} points; "
                    "result.json has all.",
                    kMostExplained));
  }
}

/// What a chart has already, or nobody reads on a page.
void cut_replay(ordered_json& replay) {
  if (!replay.contains("methods")) return;
  for (ordered_json& method : replay["methods"]) {
    for (const char* key : {"per_step", "per_step_layers", "per_head", "layers", "paged"}) {
      method.erase(key);
    }
    if (method["measured_law"].is_object()) method["measured_law"].erase("by_layer");
  }
}

std::string method_words(const ReplayMethod& method) {
  return method.budget ? fmt::format("{}, {}", method.name, budget_text(*method.budget))
                       : method.name;
}

/// Entries and error of each stored head, or of each layer where heads were not kept.
ordered_json kept_json(const ReplayResult& replay, std::vector<std::string>& cuts) {
  ordered_json out = ordered_json::array();
  std::size_t cells = 0;
  for (const ReplayMethod& method : replay.methods) {
    const bool by_head = !method.heads.empty();
    const std::vector<ReplayCell>& from = by_head ? method.heads : method.layers;
    cells += from.size();
    if (cells > kMostCells) {
      cuts.push_back(
          fmt::format("Entries kept by layer and head are of the first {} of {} methods.",
                      out.size(), replay.methods.size()));
      break;
    }
    ordered_json one{{"label", method_words(method)}, {"by_head", by_head}};
    one["cells"] = ordered_json::array();
    for (const ReplayCell& cell : from) {
      one["cells"].push_back({cell.layer, std::max(cell.head, 0), cell.entries_final,
                              cell.bytes_final, cell.rel_error_mean});
    }
    out.push_back(std::move(one));
  }
  return out;
}

/// The finding, which method errs least at equal bytes, then what could not run.
std::vector<PageSentence> replay_sentences(const ReplayResult& replay,
                                           const std::vector<SkippedMethod>& skipped) {
  std::vector<PageSentence> out;
  out.push_back({fmt::format("Replay of trace {} ({}): {} methods and budgets.",
                             clean_text(replay.trace), replay.source, replay.methods.size())});
  out.push_back({replay_finding(replay)});
  for (const EqualBytes& band : equal_bytes(replay)) {
    const ReplayMethod& least = *band.methods.front();
    const std::string budget =
        least.budget ? fmt::format(" (budget {})", budget_text(*least.budget)) : std::string{};
    out.push_back(
        {fmt::format("Least error of the {} that hold {} of the full cache's bytes: {}{}, "
                     "mean relative error {}.",
                     band.methods.size(), share_range(band.low, band.high), least.name, budget,
                     amount(least.rel_error_mean))});
  }
  if (!skipped.empty()) {
    out.push_back({fmt::format("{} method{} could not run on this trace.", skipped.size(),
                               skipped.size() == 1 ? "" : "s")});
  }
  return out;
}

/// The data sheet's roofs of a point: what its operators are drawn under.
ordered_json roof_json(const Gpu* gpu, Dtype dtype) {
  if (gpu == nullptr) return nullptr;
  return {{"gpu", gpu->name},
          {"dtype", name_of(dtype)},
          {"peak_flops", peak_flops(*gpu, dtype).count()},
          {"bandwidth", gpu->hbm_bandwidth.count()}};
}

/// Where a static run's memory goes over its length: cache, what else is held, and what a step
/// takes above that.
ordered_json memory_timeline(const StaticResult& result) {
  ordered_json out{{"tokens", ordered_json::array()},
                   {"kv", ordered_json::array()},
                   {"held", ordered_json::array()},
                   {"peak", ordered_json::array()},
                   {"step_s", ordered_json::array()}};
  const std::size_t n = result.timeline.size();
  const std::size_t stride = std::max<std::size_t>(1, (n + kMostSamples - 1) / kMostSamples);
  for (std::size_t i = 0; i < n; ++i) {
    if (i % stride != 0 && i + 1 != n) continue;
    const StaticSample& sample = result.timeline[i];
    out["tokens"].push_back(sample.tokens);
    out["kv"].push_back(sample.kv.count());
    out["held"].push_back(sample.held.count());
    out["peak"].push_back(sample.peak.count());
    out["step_s"].push_back(sample.step > 0 ? ordered_json(sample.time.count()) : nullptr);
  }
  return out;
}

ordered_json point_extras(const RunReport& report, const std::vector<std::string>& labels) {
  ordered_json out = ordered_json::array();
  const Scenario& scenario = *report.scenario;
  const std::size_t n = std::min(scenario.points.size(), kMostExplained);
  for (std::size_t i = 0; i < n; ++i) {
    ordered_json one{{"label", labels[i]}};
    if (scenario.kind == "serve") {
      const auto& spec = *scenario.points[i].serve;
      one["roof"] = roof_json(spec.gpu, spec.weight_dtype);
    } else {
      const StaticSpec& spec = scenario.points[i].spec;
      one["roof"] = roof_json(spec.gpu, spec.weight_dtype);
      one["timeline"] = memory_timeline(report.results[i]);
      one["usable_hbm_bytes"] = report.results[i].usable_hbm.count();
    }
    out.push_back(std::move(one));
  }
  return out;
}

std::vector<PageSentence> run_sentences(const RunReport& report,
                                        const std::vector<std::string>& labels) {
  std::vector<PageSentence> out;
  if (!report.scenario->points.empty()) {
    const bool serves = report.scenario->kind == "serve";
    const std::string text =
        serves ? serve_verdict(report, labels, kOneLine) : static_verdict(report, labels, kOneLine);
    bool fails = false;
    for (std::string& line : lines_of(text)) {
      const bool bad = line.find("out of memory") != std::string::npos ||
                       line.find("rejected") != std::string::npos;
      fails = fails || bad;
      out.push_back({std::move(line), bad ? PageTone::kFails : PageTone::kPlain});
    }
    if (!fails && !out.empty()) out.front().tone = PageTone::kFits;
    out.push_back({points_finding(report)});
  }
  if (report.replay) {
    for (PageSentence& one : replay_sentences(*report.replay, report.skipped)) {
      out.push_back(std::move(one));
    }
  }
  return out;
}

std::string title_of(const std::string& name, const std::string& title) {
  return name_text(title.empty() ? name : title, 2 * kLongestName);
}

}  // namespace

std::string run_page(const RunReport& report, const ordered_json& document,
                     const FigureSet& figures) {
  const Scenario& scenario = *report.scenario;
  std::vector<std::size_t> all(scenario.points.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
  const std::vector<std::string> labels = labels_within(scenario, all);
  std::vector<std::string> cuts;
  ordered_json shown = document;
  cut_points(shown, cuts);
  ordered_json extras = ordered_json::object();
  extras["points"] = point_extras(report, labels);
  if (scenario.plan) extras["percentile"] = shown_percentile(scenario.plan->attainment);
  if (report.replay) {
    cut_replay(shown["replay"]);
    extras["kept"] = kept_json(*report.replay, cuts);
  }
  const std::string common = all.empty() ? std::string{} : clean_text(common_description(scenario));
  const std::string title = title_of(scenario.name, scenario.title);
  const char* kind = all.empty() ? "replay" : scenario.kind == "serve" ? "serve" : "static";
  return page_text({.title = title,
                    .lead = common == title ? clean_text(scenario.description) : common,
                    .sentences = run_sentences(report, labels),
                    .summary = run_summary(report, document, nullptr, kSummaryWidth),
                    .data = data_of(kind, std::move(shown), figures, std::move(extras), cuts)});
}

std::string replay_page(const ReplayResult& replay, const std::vector<SkippedMethod>& skipped,
                        const ordered_json& document, const FigureSet& figures) {
  std::vector<std::string> cuts;
  ordered_json shown{{"replay", document}};
  shown["notes"] = document.value("notes", ordered_json::array());
  cut_replay(shown["replay"]);
  ordered_json extras = ordered_json::object();
  extras["kept"] = kept_json(replay, cuts);
  return page_text({.title = fmt::format("Replay of {}", clean_text(replay.trace)),
                    .lead = "A recorded attention trace through compression methods: what each "
                            "holds, reads, and how far attention's output strays.",
                    .sentences = replay_sentences(replay, skipped),
                    .summary = replay_summary(replay, skipped, nullptr, kSummaryWidth),
                    .data = data_of("replay", std::move(shown), figures, std::move(extras), cuts)});
}

std::string aggregate_page(const std::vector<ReplayResult>& replays, const ordered_json& document,
                           const FigureSet& figures) {
  return page_text(
      {.title = fmt::format("Replay of {} traces", replays.size()),
       .lead = "Means over traces, each counting once, with Student's interval of 95 %.",
       .sentences = {{fmt::format("Means over {} traces; each trace's own page stands in its "
                                  "folder.",
                                  replays.size())}},
       .summary = aggregate_summary(replays, nullptr, kSummaryWidth),
       .data = data_of("aggregate", document, figures, ordered_json::object(), {})});
}

std::string plan_page(const Scenario& scenario, const PlanResult& plan,
                      const ordered_json& document, const FigureSet& figures) {
  const std::string text = plan_summary(scenario, plan, nullptr, kOneLine);
  std::vector<PageSentence> sentences;
  // The answers stand before the first blank line.
  std::vector<std::string> lines = lines_of(text.substr(0, text.find("\n\n")));
  for (std::string& line : lines) {
    const bool no = line.find(": impossible") != std::string::npos;
    sentences.push_back({std::move(line), no ? PageTone::kFails : PageTone::kPlain});
  }
  for (const PlanGroup& group : plan.groups) sentences.push_back({plan_finding(plan, group)});
  std::vector<std::string> cuts;
  ordered_json shown = document;
  std::size_t n = 0;
  for (ordered_json& answer : shown["answers"]) {
    for (ordered_json& candidate : answer["candidates"]) {
      n += candidate["points"].size();
      candidate.erase("at_answer");  // kvsim explain tells it
    }
  }
  if (n > kMostCandidatePoints) {
    for (ordered_json& answer : shown["answers"]) {
      for (ordered_json& candidate : answer["candidates"]) candidate.erase("points");
    }
    cuts.push_back(fmt::format("{} ways to run are in front.csv.", n));
  }
  return page_text(
      {.title = title_of(scenario.name, scenario.title),
       .lead = clean_text(scenario.description),
       .sentences = std::move(sentences),
       .summary = plan_summary(scenario, plan, nullptr, kSummaryWidth),
       .data = data_of("plan", std::move(shown), figures, ordered_json::object(), cuts)});
}

std::string sweep_page(const ReplaySweep& sweep, const ordered_json& document,
                       const FigureSet& figures) {
  std::vector<std::string> cuts;
  ordered_json shown = document;
  cut_points(shown, cuts);
  for (ordered_json& point : shown["points"]) {
    for (const char* key : {"per_step", "per_head", "layers", "paged", "measured_law", "counts"}) {
      point["method"].erase(key);
    }
  }
  return page_text(
      {.title = fmt::format("Sweep of {} methods over a trace", sweep.methods.size()),
       .lead = "Replays of a recorded attention trace over a grid of parameters.",
       .sentences = lines_that_begin(sweep_summary(sweep, nullptr, kOneLine),
                                     {"Sweep of ", "best ", "Finding: "}),
       .summary = sweep_summary(sweep, nullptr, kSummaryWidth),
       .data = data_of("sweep", std::move(shown), figures, ordered_json::object(), cuts)});
}

std::string scenario_sweep_page(const ScenarioSweep& sweep, const FigureSet& figures,
                                const std::vector<std::string>& notes) {
  std::vector<std::string> cuts;
  const std::size_t n = std::min(sweep.size(), kMostSweepPoints);
  if (n < sweep.size()) {
    cuts.push_back(fmt::format("Tables have the first {} of {} points; sweep.csv has all.", n,
                               with_commas(static_cast<std::int64_t>(sweep.size()))));
  }
  // Columns and measures once, rows of values: what a table shows, not every key of every point.
  ordered_json document{{"schema", "kvsim.scenario-sweep/1"},
                        {"scenario", {{"echo", sweep.plan().echo()}}}};
  document["scenario"]["name"] = sweep.plan().name();
  document["notes"] = notes;
  ordered_json extras{{"columns", ordered_json::array()},
                      {"measures", ordered_json::array()},
                      {"rows", ordered_json::array()}};
  for (const SweepColumn& column : sweep.columns()) extras["columns"].push_back(column.name);
  for (const SweepMeasure& measure : sweep.measures()) {
    extras["measures"].push_back({{"words", measure.words},
                                  {"path", measure.path},
                                  {"unit", measure.unit},
                                  {"divisor", measure.divisor},
                                  {"most_is_best", measure.most_is_best}});
  }
  for (std::size_t i = 0; i < n; ++i) {
    ordered_json row{{"values", ordered_json::array()}, {"measures", ordered_json::array()}};
    for (const SweepColumn& column : sweep.columns()) {
      row["values"].push_back(sweep_value_text(sweep.value(column, i)));
    }
    for (const SweepMeasure& measure : sweep.measures()) {
      const auto value = sweep.measure(measure, i);
      row["measures"].push_back(value ? ordered_json(*value) : ordered_json(nullptr));
    }
    row["state"] = sweep.skipped(i) ? "skipped" : sweep.ran_out(i) ? "out of memory" : "fits";
    extras["rows"].push_back(std::move(row));
  }
  return page_text(
      {.title = fmt::format("Sweep of {}", clean_text(sweep.plan().name())),
       .lead = "One scenario run over a grid of its keys.",
       .sentences = lines_that_begin(scenario_sweep_summary(sweep, nullptr, kOneLine),
                                     {"Sweep of ", "Finding: ", "most ", "least ", "skipped "}),
       .summary = scenario_sweep_summary(sweep, nullptr, kSummaryWidth),
       .data = data_of("scenario-sweep", std::move(document), figures, std::move(extras), cuts)});
}

}  // namespace kvsim
