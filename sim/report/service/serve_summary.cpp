#include "sim/report/service/serve_summary.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/report/service/derived_metrics.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/point_table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/run/run_report.hpp"
#include "sim/serve/account/service_metrics.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {

constexpr double kPercent = 100;
constexpr std::size_t kMaxSentences = 12;
constexpr std::size_t kMaxInFull = 6;     // points whose numbers are printed in sentences
constexpr std::size_t kMaxIntervals = 9;  // points with intervals in the short summary

const std::vector<std::string>& heading_keys() {
  static const std::vector<std::string> keys{"model", "gpu",   "gpu_count",   "pipeline_parallel",
                                             "stack", "dtype", "calibration", "workload"};
  return keys;
}

std::string percent(double share) { return fmt::format("{:.0f}", kPercent * share); }

/// The description of a workload; its rate is a separate part, for scales of one trace.
struct WorkloadWords {
  std::string what, rate, lengths;
};
WorkloadWords workload_words(const RequestTrace& trace) {
  std::vector<std::int32_t> prompts, outputs;
  for (const Request& r : trace.requests) {
    prompts.push_back(r.prompt_tokens);
    outputs.push_back(r.output_tokens);
  }
  const auto lengths = [](std::vector<std::int32_t>& of) {
    std::sort(of.begin(), of.end());
    double sum = 0;
    for (const std::int32_t n : of) sum += n;
    const auto at = [&](double share) {
      return of[static_cast<std::size_t>(share * static_cast<double>(of.size() - 1))];
    };
    return fmt::format("{} tokens (99 % up to {})",
                       with_commas(std::llround(sum / static_cast<double>(of.size()))),
                       with_commas(at(0.99)));
  };
  WorkloadWords words{.what = fmt::format("Workload {}: {} request{}", trace.name,
                                          with_commas(std::ssize(trace.requests)),
                                          trace.requests.size() == 1 ? "" : "s"),
                      .rate = {},
                      .lengths = {}};
  if (trace.requests.empty()) return words;
  const bool waits = std::any_of(trace.requests.begin(), trace.requests.end(),
                                 [](const Request& r) { return r.after >= 0; });
  const double time = seconds_of(trace.requests.back().arrival - trace.requests.front().arrival);
  if (waits) {
    words.what += ", some of which wait for others to end";
  } else if (time > 0) {
    words.rate = amount(static_cast<double>(trace.requests.size() - 1) / time);
  }
  words.lengths =
      fmt::format("prompts of {}, outputs of {}, means", lengths(prompts), lengths(outputs));
  return words;
}

std::string workloads_block(const RunReport& report, std::size_t width) {
  constexpr std::size_t kMax = 4;
  std::vector<const RequestTrace*> seen;
  std::vector<std::pair<WorkloadWords, std::vector<std::string>>> said;
  for (const ScenarioPoint& point : report.scenario->points) {
    const RequestTrace* trace = point.serve->requests.get();
    if (std::find(seen.begin(), seen.end(), trace) != seen.end()) continue;
    seen.push_back(trace);
    WorkloadWords words = workload_words(*trace);
    auto found = std::find_if(said.begin(), said.end(), [&](const auto& entry) {
      return entry.first.what == words.what && entry.first.lengths == words.lengths;
    });
    if (found == said.end()) found = said.insert(said.end(), {words, {}});
    if (!words.rate.empty() && (found->second.empty() || found->second.back() != words.rate)) {
      found->second.push_back(words.rate);
    }
  }
  std::string out;
  for (std::size_t i = 0; i < std::min(said.size(), kMax); ++i) {
    const auto& [words, rates] = said[i];
    std::string text = words.what;
    if (!rates.empty()) text += fmt::format(", {} per second", fmt::join(rates, " or "));
    if (!words.lengths.empty()) text += "; " + words.lengths;
    out += paragraph(text + ".", width, 2);
  }
  if (said.size() > kMax) out += fmt::format("and {} more workloads\n", said.size() - kMax);
  return out;
}

/// Places of columns: request columns come first, in a separate table.
constexpr int kFirstOfService = 10, kFailed = 12, kPool = 15;

/// Single numbers of a service.
std::vector<PointColumn> service_columns(const RunReport& report) {
  return summary_columns(service_metrics(), [&report](std::size_t point) -> const ServeResult& {
    return report.serves[point];
  });
}

/// The median of a distribution, or the number itself.
std::optional<double> median_of(const MetricValue& value) {
  const auto* times = std::get_if<Distribution>(&value.any());
  return times != nullptr ? std::optional{times->p50} : value.number();
}

PointColumn percentile_column(const RunReport& report, const Metric<ServeResult>& metric,
                              int percentile) {
  const MetricColumn& shown = metric.info.summary;
  return {shown.place, std::string{shown.header}, fmt::format("p{} {}", percentile, shown.unit),
          [&metric, &report, percentile](std::size_t point) {
            const MetricValue value = metric.value(report.serves[point]);
            const Distribution* times = value.distribution();
            return times == nullptr ? std::string{"-"}
                                    : metric_cell(value_at(*times, percentile), metric.info);
          }};
}

/// The latencies with a column in summaries.
std::vector<const Metric<ServeResult>*> shown_latencies() {
  std::vector<const Metric<ServeResult>*> out;
  for (const Metric<ServeResult>& metric : service_metrics()) {
    if (metric.info.summary.place != 0 && metric.info.kind == MetricKind::kLatency) {
      out.push_back(&metric);
    }
  }
  return out;
}

/// All percentiles, a table for each latency.
std::string percentile_tables(const RunReport& report, std::size_t width) {
  std::string out;
  for (const Metric<ServeResult>* metric : shown_latencies()) {
    std::vector<PointColumn> columns;
    for (const int percentile : {50, 90, 95, 99}) {
      columns.push_back(percentile_column(report, *metric, percentile));
    }
    out += point_table({.header = std::string{metric->info.summary.header}}, columns,
                       point_groups(*report.scenario, heading_keys()))
               .str(width) +
           "\n";
  }
  return out;
}

std::string latency_table(const RunReport& report, std::size_t width, bool brief) {
  const int tail = report.scenario->points.front().serve->slo.percentile.value_or(99);
  std::vector<PointColumn> columns;
  for (const Metric<ServeResult>* metric : shown_latencies()) {
    columns.push_back(percentile_column(report, *metric, 50));
    if (tail != 50) columns.push_back(percentile_column(report, *metric, tail));
  }
  for (PointColumn& column : service_columns(report)) {
    if (column.place < kFirstOfService) columns.push_back(std::move(column));
  }
  sort_columns(columns);
  std::vector<PointGroup> groups = point_groups(*report.scenario, heading_keys());
  const std::string others = brief ? keep_first_groups(groups) : std::string{};
  return point_table({.header = "what requests see"}, columns, groups).str(width) + others;
}

/// The 90 % intervals of latencies and rates; empty if no point has one.
std::string interval_table(const RunReport& report, std::size_t width) {
  struct Shown {
    const char* key;
    const char* header;
    const char* unit;
  };
  constexpr std::array kShown{Shown{"ttft_s", "TTFT p50", "s"}, Shown{"tpot_s", "TPOT p50", "ms"},
                              Shown{"e2e_s", "E2E p50", "s"}, Shown{"request_s", "done", "req/s"},
                              Shown{"slo_attained", "good", "%"}};
  const auto intervals = [&](std::size_t point) -> const ServeIntervals* {
    const auto& all = report.serve_intervals;
    return point < all.size() && all[point] ? &*all[point] : nullptr;
  };
  std::vector<PointColumn> columns;
  for (const Shown& shown : kShown) {
    columns.push_back({1, shown.header, shown.unit, [=](std::size_t point) {
                         const ServeIntervals* of = intervals(point);
                         if (of == nullptr) return std::string{"-"};
                         const MetricEnds ends = of->ends(shown.key);
                         return range_cell(median_of(ends.low), median_of(ends.high), shown.unit);
                       }});
  }
  const bool has_bounds = std::any_of(report.serve_intervals.begin(), report.serve_intervals.end(),
                                      [](const auto& of) { return of && of->slo_probability; });
  if (has_bounds) {
    // Probability that 90 % of requests meet all bounds.
    columns.push_back({1, "SLO met", "p %", [=](std::size_t point) {
                         const ServeIntervals* of = intervals(point);
                         if (of == nullptr || !of->slo_probability) return std::string{"-"};
                         return percent(*of->slo_probability);
                       }});
  }
  const std::vector<PointGroup> groups = point_groups(*report.scenario, heading_keys());
  std::string basis;
  for (const PointGroup& group : groups) {
    for (const std::size_t point : group.points) {
      const ServeIntervals* of = intervals(point);
      if (of == nullptr) continue;
      basis = fmt::format(
          "intervals: iterations take x{:.2f} to x{:.2f}, first tokens x{:.2f} to "
          "x{:.2f}: {}.",
          of->faster.run.decode, of->slower.run.decode,
          of->faster.run.prefill * of->faster.first_token,
          of->slower.run.prefill * of->slower.first_token, of->basis);
    }
  }
  if (basis.empty()) return {};
  return point_table({.header = "90 % interval"}, columns, groups).str(width) +
         paragraph(basis, width, 2) + "\n";
}

std::string service_table(const RunReport& report, std::size_t width) {
  std::vector<PointColumn> columns = service_columns(report);
  std::erase_if(columns, [](const PointColumn& c) { return c.place < kFirstOfService; });
  columns.push_back({kFailed, "failed", "", [&](std::size_t point) {
                       const ServeResult& r = report.serves[point];
                       return with_commas(r.rejected + r.unfinished);
                     }});
  // The largest share of the pool that sequences held.
  columns.push_back({kPool, "KV full", "max %", [&](std::size_t point) {
                       const ServeResult& r = report.serves[point];
                       if (r.blocks == 0) return std::string{"-"};
                       return percent(static_cast<double>(r.peak_blocks) /
                                      static_cast<double>(r.blocks));
                     }});
  sort_columns(columns);
  return point_table({.header = "the service"}, columns,
                     point_groups(*report.scenario, heading_keys()))
      .str(width);
}

/// "at 12.4 s request 17: blocks for its prompt, requested 1.2 GiB, 0.3 GiB free".
std::string first_oom(const ServeOom& oom) {
  std::string text = fmt::format(
      "{}{}: {}", oom.request < 0 ? "at the start" : "at " + to_text(Seconds{seconds_of(oom.at)}),
      oom.request < 0 ? "" : fmt::format(" request {}", oom.request), oom.what);
  // A start without enough memory has no single failing request.
  if (oom.requested > Bytes{}) {
    text += fmt::format(", requested {}, {} free", to_text(oom.requested), to_text(oom.free));
  }
  if (!oom.message.empty()) text += ". " + oom.message;
  return text;
}

/// Why requests were rejected.
std::string why_rejected(const ServeResult& r) {
  // Without a pool there is no admission limit: a batch ran out of memory.
  if (r.block_tokens == 0) return "lost with batches that ran out of memory";
  if (!r.startup || r.startup->max_model_len <= 0) {
    return "too many tokens for the cache, the sequence limit or the room for scores";
  }
  return fmt::format(
      "longer than the engine's longest sequence, {} tokens (max_model_len), than its pool of {}, "
      "than an iteration's {} (max_num_batched_tokens) without chunked prefill, or without room "
      "for "
      "scores",
      with_commas(r.startup->max_model_len), with_commas(r.kv_capacity_tokens),
      with_commas(r.limits.tokens));
}

}  // namespace

std::string serve_verdict(const RunReport& report, const std::vector<std::string>& labels,
                          std::size_t width) {
  const std::size_t n = report.serves.size();
  // Points with the same text share one line.
  std::vector<std::pair<std::string, std::vector<std::string>>> said;
  const auto say = [&](std::string text, const std::string& who) {
    const auto found = std::find_if(said.begin(), said.end(),
                                    [&](const auto& entry) { return entry.first == text; });
    if (found == said.end()) {
      said.push_back({std::move(text), {who}});
    } else {
      found->second.push_back(who);
    }
  };
  std::size_t whole = 0;
  for (std::size_t i = 0; i < n; ++i) {
    const ServeResult& r = report.serves[i];
    if (r.rejected + r.unfinished == 0) ++whole;
    // With many points the numbers are in the tables.
    const std::string bound = bottleneck(r).text;
    say(n > kMaxInFull ? bound.substr(0, bound.find(':')) : bound, labels[i]);
    const bool starts = r.ooms.empty() || r.ooms.front().request >= 0 || r.completed > 0;
    if (r.rejected > 0 && starts) {
      say(fmt::format("{} request{} rejected: {}", with_commas(r.rejected),
                      r.rejected == 1 ? "" : "s", why_rejected(r)),
          labels[i]);
    }
    if (!r.ooms.empty())
      say(fmt::format("first out of memory {}", first_oom(r.ooms.front())), labels[i]);
  }
  std::string out =
      n == 1 ? (whole == 1 ? "It serves every request.\n" : "It does not serve every request.\n")
             : fmt::format("{} of {} points serve every request.\n", whole, n);
  for (std::size_t i = 0; i < std::min(said.size(), kMaxSentences); ++i) {
    const auto& [text, who] = said[i];
    const std::string name = n == 1            ? ""
                             : who.size() == n ? "all: "
                             : who.size() > 3  ? fmt::format("{} points: ", who.size())
                                               : fmt::format("{}: ", fmt::join(who, ", "));
    out += paragraph(fmt::format("- {}{}", name, text), width, 2);
  }
  if (said.size() > kMaxSentences) {
    out += fmt::format("- and {} more: bound_text in result.json\n", said.size() - kMaxSentences);
  }
  return out;
}

namespace {

std::string slo_words(const SloSpec& slo) {
  std::vector<std::string> words;
  const auto put = [&](const char* name, const std::optional<Seconds>& bound) {
    if (bound) words.push_back(fmt::format("{} {}", name, to_text(*bound)));
  };
  put("TTFT", slo.ttft);
  put("TPOT", slo.tpot);
  put("E2E", slo.e2e);
  return fmt::format("{}", fmt::join(words, ", "));
}

}  // namespace

std::string serve_block(const RunReport& report, const std::vector<std::string>& labels,
                        std::size_t width) {
  std::string out = workloads_block(report, width);
  out += fmt::format("\n{}\n{}{}\n", latency_table(report, width, false),
                     percentile_tables(report, width), service_table(report, width));
  out += interval_table(report, width);
  out += serve_verdict(report, labels, width);
  std::string legend =
      "TTFT: arrival to first token. TPOT: (last - first token) / (output tokens - 1). E2E: "
      "arrival "
      "to last token. ";
  const SloSpec& slo = report.scenario->points.front().serve->slo;
  if (!slo.empty()) legend += fmt::format("Good: within {}. ", slo_words(slo));
  legend += "MFU, MBU: of the data sheet's peak and bandwidth, over the makespan.";
  return out + paragraph(legend, width);
}

std::string brief_serve_block(const RunReport& report, const std::vector<std::string>& labels,
                              std::size_t width) {
  std::string out = workloads_block(report, width);
  out += fmt::format("\n{}\n", latency_table(report, width, true));
  // A longer table would hide the rest of the summary; `-v` and result.json have all intervals.
  if (report.serves.size() <= kMaxIntervals) {
    out += interval_table(report, width);
  } else {
    out += paragraph("90 % intervals: -v, or the page", width);
  }
  out += serve_verdict(report, labels, width);
  const SloSpec& slo = report.scenario->points.front().serve->slo;
  if (!slo.empty()) out += paragraph(fmt::format("Good: within {}.", slo_words(slo)), width);
  return out;
}

}  // namespace kvsim
