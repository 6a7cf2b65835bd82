#include "sim/report/service/serve_summary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/report/service/serve_measures.hpp"
#include "sim/report/text/point_names.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/run/run_report.hpp"
#include "sim/serve/serve_metrics.hpp"

namespace kvsim {
namespace {

using Align = Table::Align;

constexpr double kPercent = 100;
constexpr std::size_t kMostSentences = 12;
constexpr std::size_t kMostInFull = 6;  // points whose numbers are printed in sentences

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
WorkloadWords words_of(const RequestTrace& trace) {
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
    words.what += ", of which some wait for others to end";
  } else if (time > 0) {
    words.rate = amount(static_cast<double>(trace.requests.size() - 1) / time);
  }
  words.lengths =
      fmt::format("prompts of {}, outputs of {}, means", lengths(prompts), lengths(outputs));
  return words;
}

std::string workloads_block(const RunReport& report, std::size_t width) {
  constexpr std::size_t kMost = 4;
  std::vector<const RequestTrace*> seen;
  std::vector<std::pair<WorkloadWords, std::vector<std::string>>> said;
  for (const ScenarioPoint& point : report.scenario->points) {
    const RequestTrace* trace = point.serve->requests.get();
    if (std::find(seen.begin(), seen.end(), trace) != seen.end()) continue;
    seen.push_back(trace);
    WorkloadWords words = words_of(*trace);
    auto found = std::find_if(said.begin(), said.end(), [&](const auto& entry) {
      return entry.first.what == words.what && entry.first.lengths == words.lengths;
    });
    if (found == said.end()) found = said.insert(said.end(), {words, {}});
    if (!words.rate.empty() && (found->second.empty() || found->second.back() != words.rate)) {
      found->second.push_back(words.rate);
    }
  }
  std::string out;
  for (std::size_t i = 0; i < std::min(said.size(), kMost); ++i) {
    const auto& [words, rates] = said[i];
    std::string text = words.what;
    if (!rates.empty()) text += fmt::format(", {} a second", fmt::join(rates, " or "));
    if (!words.lengths.empty()) text += "; " + words.lengths;
    out += paragraph(text + ".", width, 2);
  }
  if (said.size() > kMost) out += fmt::format("and {} more workloads\n", said.size() - kMost);
  return out;
}

std::string latency_table(const RunReport& report, std::size_t width) {
  constexpr Align kRight = Align::kRight;
  constexpr double kMs = 1e3;
  const auto& plan = report.scenario->plan;
  const int tail = plan ? shown_percentile(plan->attainment) : 99;
  const std::string tail_s = fmt::format("p{} s", tail), tail_ms = fmt::format("p{} ms", tail);
  Table table{{{"what requests see", Align::kLeft},
               {"TTFT", kRight, "p50 s"},
               {"TTFT", kRight, tail_s},
               {"TPOT", kRight, "p50 ms"},
               {"TPOT", kRight, tail_ms},
               {"E2E", kRight, "p50 s"},
               {"E2E", kRight, tail_s},
               {"good", kRight, "%"}}};
  const auto value = [](const Distribution& d, double x, double scale) {
    return d.n > 0 ? amount(x * scale) : std::string{"-"};
  };
  for (const PointGroup& group : point_groups(*report.scenario, heading_keys())) {
    table.add_section(group.heading);
    const std::string indent = group.heading.empty() ? "" : "  ";
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const ServeResult& r = report.serves[group.points[k]];
      table.add_row({indent + group.labels[k], value(r.ttft, r.ttft.p50, 1),
                     value(r.ttft, value_at(r.ttft, tail), 1), value(r.tpot, r.tpot.p50, kMs),
                     value(r.tpot, value_at(r.tpot, tail), kMs), value(r.e2e, r.e2e.p50, 1),
                     value(r.e2e, value_at(r.e2e, tail), 1),
                     r.slo_attained ? percent(*r.slo_attained) : "-"});
    }
  }
  return table.str(width);
}

/// The 90 % intervals of latencies and rates; empty if no point has one.
std::string interval_table(const RunReport& report, std::size_t width) {
  constexpr Align kRight = Align::kRight;
  constexpr double kMs = 1e3;
  Table table{{{"90 % interval", Align::kLeft},
               {"TTFT p50", kRight, "s"},
               {"TPOT p50", kRight, "ms"},
               {"E2E p50", kRight, "s"},
               {"done", kRight, "req/s"},
               {"good", kRight, "%"}}};
  const auto range = [](double low, double high, double scale) {
    return fmt::format("{} to {}", amount(low * scale), amount(high * scale));
  };
  std::string basis;
  for (const PointGroup& group : point_groups(*report.scenario, heading_keys())) {
    table.add_section(group.heading);
    const std::string indent = group.heading.empty() ? "" : "  ";
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const std::size_t i = group.points[k];
      if (i >= report.serve_intervals.size() || !report.serve_intervals[i]) {
        table.add_row({indent + group.labels[k], "-", "-", "-", "-", "-"});
        continue;
      }
      const ServeMetrics& low = report.serve_intervals[i]->low;
      const ServeMetrics& high = report.serve_intervals[i]->high;
      basis = fmt::format("intervals: repeated with all iteration times x{:.2f} and x{:.2f}: {}.",
                          report.serve_intervals[i]->faster, report.serve_intervals[i]->slower,
                          report.serve_intervals[i]->basis);
      table.add_row(
          {indent + group.labels[k], range(low.ttft.p50, high.ttft.p50, 1),
           range(low.tpot.p50, high.tpot.p50, kMs), range(low.e2e.p50, high.e2e.p50, 1),
           range(low.request_s, high.request_s, 1),
           low.slo_attained && high.slo_attained
               ? fmt::format("{} to {}", percent(*low.slo_attained), percent(*high.slo_attained))
               : "-"});
    }
  }
  if (basis.empty()) return {};
  return table.str(width) + paragraph(basis, width, 2) + "\n";
}

/// The largest share of the pool that sequences held.
std::string peak_kv(const ServeResult& r) {
  if (r.blocks > 0) {
    return percent(static_cast<double>(r.peak_blocks) / static_cast<double>(r.blocks));
  }
  return "-";
}

std::string service_table(const RunReport& report, std::size_t width) {
  constexpr Align kRight = Align::kRight;
  Table table{{{"the service", Align::kLeft},
               {"done", kRight, ""},
               {"failed", kRight, ""},
               {"done", kRight, "req/s"},
               {"output", kRight, "tok/s"},
               {"KV full", kRight, "max %"},
               {"pre-", kRight, "empted"},
               {"busy", kRight, "%"},
               {"MFU", kRight, "%"},
               {"MBU", kRight, "%"}}};
  for (const PointGroup& group : point_groups(*report.scenario, heading_keys())) {
    table.add_section(group.heading);
    const std::string indent = group.heading.empty() ? "" : "  ";
    for (std::size_t k = 0; k < group.points.size(); ++k) {
      const ServeResult& r = report.serves[group.points[k]];
      table.add_row({indent + group.labels[k], with_commas(r.completed),
                     with_commas(r.rejected + r.unfinished), amount(r.request_s),
                     amount(r.output_tok_s), peak_kv(r), with_commas(r.preemptions),
                     percent(r.busy), percent(r.mfu), percent(r.mbu)});
    }
  }
  return table.str(width);
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
    const std::string bound = bound_of(r).text;
    say(n > kMostInFull ? bound.substr(0, bound.find(':')) : bound, labels[i]);
    const bool starts = r.ooms.empty() || r.ooms.front().request >= 0 || r.completed > 0;
    if (r.rejected > 0 && starts) {
      // Without a pool there is no admission limit: a batch ran out of memory.
      say(fmt::format("{} request{} rejected: {}", with_commas(r.rejected),
                      r.rejected == 1 ? "" : "s",
                      r.block_tokens > 0
                          ? "no cache, no sequence limit or no room for scores takes so many tokens"
                          : "lost with batches that ran out of memory"),
          labels[i]);
    }
    if (!r.ooms.empty())
      say(fmt::format("first out of memory {}", first_oom(r.ooms.front())), labels[i]);
  }
  std::string out =
      n == 1 ? (whole == 1 ? "It serves every request.\n" : "It does not serve every request.\n")
             : fmt::format("{} of {} points serve every request.\n", whole, n);
  for (std::size_t i = 0; i < std::min(said.size(), kMostSentences); ++i) {
    const auto& [text, who] = said[i];
    const std::string name = n == 1            ? ""
                             : who.size() == n ? "all: "
                             : who.size() > 3  ? fmt::format("{} points: ", who.size())
                                               : fmt::format("{}: ", fmt::join(who, ", "));
    out += paragraph(fmt::format("- {}{}", name, text), width, 2);
  }
  if (said.size() > kMostSentences) {
    out += fmt::format("- and {} more: bound_text in result.json\n", said.size() - kMostSentences);
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
  out += fmt::format("\n{}\n{}\n", latency_table(report, width), service_table(report, width));
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

}  // namespace kvsim
