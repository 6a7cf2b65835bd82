#include "sim/report/serve_summary.hpp"

#include <algorithm>
#include <cstdint>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/units_format.hpp"
#include "sim/report/point_names.hpp"
#include "sim/report/serve_measures.hpp"
#include "sim/report/table.hpp"

namespace kvsim {
namespace {

using Align = Table::Align;

constexpr double kPercent = 100;
constexpr std::size_t kMostSentences = 12;

const std::vector<std::string>& heading_keys() {
  static const std::vector<std::string> keys{"model",   "gpu",   "gpu_count", "pipeline_parallel",
                                             "stack",   "dtype", "kv_dtype",  "calibration",
                                             "workload"};
  return keys;
}

std::string percent(double share) { return fmt::format("{:.0f}", kPercent * share); }

/// "1,000 requests in 118 s (8.5 a second): prompts of 1,024 tokens (99 % to 4,000), outputs of …".
std::string workload_sentence(const RequestTrace& trace) {
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
  std::string out = fmt::format("Workload {}: {} request{}", trace.name,
                                with_commas(static_cast<std::int64_t>(trace.requests.size())),
                                trace.requests.size() == 1 ? "" : "s");
  if (trace.requests.empty()) return out + ".";
  const bool waits = std::any_of(trace.requests.begin(), trace.requests.end(),
                                 [](const Request& r) { return r.after >= 0; });
  const double time = seconds_of(trace.requests.back().arrival - trace.requests.front().arrival);
  if (waits) {
    out += ", of which some wait for others to end";
  } else if (time > 0) {
    out += fmt::format(" in {} ({} a second)", to_text(Seconds{time}),
                       amount(static_cast<double>(trace.requests.size() - 1) / time));
  }
  return out +
         fmt::format("; prompts of {}, outputs of {}, means.", lengths(prompts), lengths(outputs));
}

std::string workloads_block(const RunReport& report, std::size_t width) {
  constexpr std::size_t kMost = 4;
  std::vector<std::string> said;
  for (const ScenarioPoint& point : report.scenario->points) {
    std::string sentence = workload_sentence(*point.serve->requests);
    if (std::find(said.begin(), said.end(), sentence) == said.end()) {
      said.push_back(std::move(sentence));
    }
  }
  std::string out;
  for (std::size_t i = 0; i < std::min(said.size(), kMost); ++i) {
    out += paragraph(said[i], width, 2);
  }
  if (said.size() > kMost) out += fmt::format("and {} more workloads\n", said.size() - kMost);
  return out;
}

std::string latency_table(const RunReport& report, std::size_t width) {
  constexpr Align kRight = Align::kRight;
  constexpr double kMs = 1e3;
  Table table{{{"what requests see", Align::kLeft},
               {"TTFT", kRight, "p50 s"},
               {"TTFT", kRight, "p99 s"},
               {"TPOT", kRight, "p50 ms"},
               {"TPOT", kRight, "p99 ms"},
               {"E2E", kRight, "p50 s"},
               {"E2E", kRight, "p99 s"},
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
                     value(r.ttft, r.ttft.p99, 1), value(r.tpot, r.tpot.p50, kMs),
                     value(r.tpot, r.tpot.p99, kMs), value(r.e2e, r.e2e.p50, 1),
                     value(r.e2e, r.e2e.p99, 1), r.slo_attained ? percent(*r.slo_attained) : "-"});
    }
  }
  return table.str(width);
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

/// "at 12.4 s request 17: blocks for its prompt, asked 1.2 GiB, 0.3 GiB free".
std::string first_oom(const ServeOom& oom) {
  return fmt::format(
      "{}{}: {}, asked {}, {} free",
      oom.request < 0 ? "at the start" : "at " + to_text(Seconds{seconds_of(oom.at)}),
      oom.request < 0 ? "" : fmt::format(" request {}", oom.request), oom.what,
      to_text(oom.requested), to_text(oom.free));
}

std::string verdicts(const RunReport& report, const std::vector<std::string>& labels,
                     std::size_t width) {
  const std::size_t n = report.serves.size();
  // The same said of many points is said once.
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
    say(bound_of(*report.scenario->points[i].serve, r).text, labels[i]);
    if (r.rejected > 0) {
      say(fmt::format("{} request{} rejected: no cache or sequence limit takes so many tokens",
                      with_commas(r.rejected), r.rejected == 1 ? "" : "s"),
          labels[i]);
    }
    if (!r.ooms.empty()) say("first out of memory " + first_oom(r.ooms.front()), labels[i]);
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
  out += "\n" + latency_table(report, width) + "\n" + service_table(report, width) + "\n";
  out += verdicts(report, labels, width);
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
