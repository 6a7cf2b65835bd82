// kvsim explain RESULT iteration_s and bound: the terms of a service's mean iteration, and its
// bottleneck.

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "sim/cli/explain/explain_parts.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr double kMilli = 1e3;
constexpr double kMore = 1.1;  // factor on a resource in the sensitivity table

/// Seconds of a mean iteration summed by `word` of its terms, largest first.
std::vector<std::pair<std::string, double>> sums_by(
    const Field& mean, const std::function<std::string(const Field&)>& word) {
  std::map<std::string, double> sums;
  for (const Field& term : mean.at("terms").items()) {
    sums[word(term)] += explained_number(term.at("seconds"));
  }
  std::vector<std::pair<std::string, double>> out{sums.begin(), sums.end()};
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  return out;
}

std::string tokens_text(double tokens) { return count_text(tokens) + " tokens"; }

/// The name of the resource that bounds a term; always the link for collectives.
std::string resource_of(const Field& term) {
  if (term.at("family").string() == "collective") return "link between GPUs";
  const std::string bound = term.at("bound").string();
  if (bound == "memory") return "memory bandwidth";
  if (bound == "launch") return "launches";
  if (bound == "host") return "host";
  return bound;
}

/// The utilization of each possible bound: a share of the time or of the rate.
ExplainedTable resources(const Field& point, const std::optional<Field>& mean) {
  const std::string bound = point.at("bound").string();
  const Field use = point.at("resources");
  ExplainedTable table{"possible bounds, and how much of each was in use", {}};
  const auto add = [&](std::string_view kind, std::string_view what, std::optional<double> share,
                       std::string text) {
    table.rows.push_back({kind == bound ? fmt::format("{} (binds)", what) : std::string{what},
                          share, std::move(text)});
  };
  const double waiting = explained_number(use.at("waiting"));
  add("arrival_rate", "arrival rate", explained_number(point.at("busy")),
      fmt::format("of the time an iteration ran; requests waited {} of it", percent_text(waiting)));
  if (const auto peak = maybe_number(use, "kv_peak")) {
    add("kv_capacity", "KV capacity", maybe_number(use, "kv_tight"),
        fmt::format("of the time the cache was full and requests waited; {} of its blocks at the "
                    "peak, {} preemptions",
                    percent_text(*peak),
                    with_commas(point.at("preemptions").integer(0, std::int64_t{1} << 53))));
    add("kv_reservation", "reserved cache", maybe_number(point, "held_back"),
        "of the time requests waited for free cache that was reserved for future outputs");
  }
  if (const auto limit = maybe_number(use, "max_num_seqs")) {
    add("max_num_seqs", "max_num_seqs", maybe_number(use, "seqs_full"),
        fmt::format("of the time all of its {:.0f} sequences ran and others waited; {:.0f} ran at "
                    "the most",
                    *limit, explained_number(use.at("most_running"))));
  }
  if (const auto budget = maybe_number(use, "max_num_batched_tokens")) {
    add("token_budget", "token budget", maybe_number(use, "tokens_full"),
        fmt::format("of the time an iteration spent all of its {}", tokens_text(*budget)));
  }
  add("compute", "compute", maybe_number(point, "mfu"), "of the data sheet's peak");
  add("memory_bandwidth", "memory bandwidth", maybe_number(point, "mbu"), "of the data sheet's");
  if (mean) {
    double link = 0;
    double host = 0;
    for (const auto& [resource, seconds] : sums_by(*mean, resource_of)) {
      if (resource == "link between GPUs") link = seconds;
      if (resource == "host" || resource == "launches") host += seconds;
    }
    const double all = explained_number(mean->at("step_s"));
    if (link > 0) add("link", "link between GPUs", link / all, "of a mean iteration");
    add("host", "host and launches", host / all, "of a mean iteration");
  }
  if (const double moved = explained_number(use.at("transfers")); moved > 0) {
    add("link", "link between replicas", std::nullopt,
        fmt::format("{} caches moved, {:.4g} ms each on average, and {:.4g} ms before that for "
                    "memory",
                    count_text(moved), kMilli * explained_number(use.at("transfer_s")),
                    kMilli * explained_number(use.at("transfer_wait_s"))));
  }
  return table;
}

/// The effect of 10 % more of each resource separately.
ExplainedTable moves(const Field& point, const std::optional<Field>& mean) {
  ExplainedTable table{
      fmt::format("sensitivity: {} more of one resource, and the gain", percent_text(kMore - 1)),
      {}};
  const auto by_share = [](const ExplainedRow& a, const ExplainedRow& b) {
    return a.share.value_or(0) > b.share.value_or(0);
  };
  std::vector<ExplainedRow> times;
  if (mean) {
    const double all = explained_number(mean->at("step_s"));
    for (const auto& [resource, seconds] : sums_by(*mean, resource_of)) {
      const double saved = seconds * (1 - 1 / kMore);
      times.push_back({resource, all > 0 ? saved / all : 0,
                       fmt::format("off a mean iteration, of {:.4g} ms", kMilli * all)});
    }
  }
  std::vector<ExplainedRow> memory;
  if (const auto start = point.find("startup")) {
    const double pool = explained_number(start->at("kv_cache_bytes"));
    const double capacity = explained_number(point.at("kv_capacity_tokens"));
    const auto row = [&](const char* what, double more) {
      if (!(pool > 0)) return;
      memory.push_back(
          {what, more / pool,
           fmt::format("more cache: {} instead of {}", tokens_text(capacity * (pool + more) / pool),
                       tokens_text(capacity))});
    };
    // The engine's fraction applies to its base: if the base is memory free after weights, the pool
    // gains only this share of memory that weights release.
    const auto kind = start->find("fraction_of");
    const bool of_free = kind && (kind->string() == "free" || kind->string() == "after_weights");
    const double share = kind ? explained_number(start->at("memory_fraction")) : 1;
    const double grows = explained_number(start->at(kind ? "total_bytes" : "usable_bytes"));
    row("HBM", (kMore - 1) * share * grows);
    row("smaller cache entries (format, method)", (kMore - 1) * pool);
    row("smaller weights (format, GPUs)",
        (1 - 1 / kMore) * (of_free ? share : 1) * explained_number(start->at("weights_bytes")));
  }
  std::stable_sort(times.begin(), times.end(), by_share);
  std::stable_sort(memory.begin(), memory.end(), by_share);
  // The bound comes first: if it is memory, higher speed helps little, and vice versa.
  const bool by_memory = point.at("bound").string().starts_with("kv_");
  for (const auto* rows : by_memory ? std::array{&memory, &times} : std::array{&times, &memory}) {
    table.rows.insert(table.rows.end(), rows->begin(), rows->end());
  }
  return table;
}

/// The advice if no resource of the engine is the bound.
std::string advice(std::string_view bound) {
  if (bound == "arrival_rate")
    return "more requests would be served: no resource of the engine is the limit";
  if (bound == "kv_capacity") return "more cache lets more sequences run at once";
  if (bound == "kv_reservation") {
    return "reserving less for future outputs (declared_tokens of requests, conservativeness, "
           "policy max-utilization) lets more sequences run at once";
  }
  if (bound == "max_num_seqs") return "a higher max_num_seqs lets more sequences run at once";
  if (bound == "token_budget") return "a higher max_num_batched_tokens lets an iteration do more";
  if (bound == "start" || bound == "rejection") return "";
  return "shorter iterations serve more";
}

}  // namespace

std::string service_basis(const Field& point) {
  const auto intervals = point.find("intervals");
  return intervals ? text_or_none(*intervals, "basis") : std::string{};
}

void add_phases(Explanation& out, const Field& point) {
  const double makespan = explained_number(point.at("makespan_s"));
  const Field phases = point.at("phases");
  struct Phase {
    const char* key;
    const char* what;
  };
  constexpr std::array<Phase, 4> kPhases{{{"prompts", "iterations of only prompts"},
                                          {"mixed", "iterations of prompts and decodes"},
                                          {"decodes", "iterations of only decodes"},
                                          {"idle", "no iteration"}}};
  for (const Phase& phase : kPhases) {
    const double share = explained_number(phases.at(phase.key));
    if (share == 0) continue;
    out.terms.push_back(
        {.what = phase.what, .value = share * makespan, .source = "mean over replicas"});
  }
  resolve(out, phases, "makespan_s", "s", makespan);
}

ExplainedTable mean_by_family(const Field& mean) {
  const double all = explained_number(mean.at("step_s"));
  ExplainedTable families{
      fmt::format("a mean iteration of {:.4g} ms by operator family (iteration_s: every operator)",
                  kMilli * all),
      {}};
  for (const auto& [family, seconds] :
       sums_by(mean, [](const Field& term) { return term.at("family").string(); })) {
    families.rows.push_back(
        {family, all > 0 ? seconds / all : 0, fmt::format("{:.4g} ms", kMilli * seconds)});
  }
  return families;
}

Explanation explain_iteration(const Field& point) {
  const auto mean = point.find("mean_iteration");
  if (!mean) {
    fail_without(point, "iteration_s", "no iteration ran, or none is of continuous batches");
  }
  Explanation out = explain_step(point, *mean, "iteration_s");
  out.basis = service_basis(point);
  out.notes = {
      fmt::format("an iteration of {} decoding sequences of {} tokens and {} prompt tokens: "
                  "means of {} iterations, which took {:.4g} ms on average",
                  explained_number(mean->at("decodes")), explained_number(mean->at("tokens")),
                  explained_number(mean->at("prefill_tokens")),
                  explained_number(mean->at("iterations")),
                  explained_number(mean->at("mean_s")) * kMilli),
      "the time of the mean iteration is not the mean of times; ends of prompts, where a "
      "method compresses, are left out"};
  return out;
}

Explanation explain_bound(const Field& point) {
  Explanation out{.key = "bound", .point = point.at("label").string(), .unit = "s"};
  const auto bound = point.at("bound").string();
  out.notes.push_back(fmt::format("{}: {}", bound, point.at("bound_text").string()));
  if (const std::string text = advice(bound); !text.empty()) out.notes.push_back(text);
  add_phases(out, point);
  const auto mean = point.find("mean_iteration");
  out.tables.push_back(resources(point, mean));
  if (mean) out.tables.push_back(mean_by_family(*mean));
  out.tables.push_back(moves(point, mean));
  return out;
}

}  // namespace kvsim
