// kvsim explain RESULT ttft_s, tpot_s, itl_s, e2e_s and queue_s: the parts of a service's request
// latencies, as far as its result contains them.

#include <array>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/cli/explain/explain_parts.hpp"

namespace kvsim {
namespace {

constexpr std::array kPercentiles{"p50", "p90", "p95", "p99"};

std::string time_text(double seconds) { return to_text(Seconds{seconds}); }

std::string range_text(const std::optional<double>& low, const std::optional<double>& high) {
  if (!low || !high) return "";
  return fmt::format(" ({} to {})", time_text(*low), time_text(*high));
}

/// A number of the point's distribution `key`, or of its interval's end with `end` "_low" or
/// "_high".
std::optional<double> of(const Field& point, std::string_view key, std::string_view number,
                         std::string_view end = "") {
  const auto distribution = point.find(fmt::format("{}{}", key, end));
  return distribution ? maybe_number(*distribution, number) : std::nullopt;
}

double mean_of(const Field& point, std::string_view key) {
  return explained_number(point.at(key).at("mean"));
}

double count_of(const Field& point, std::string_view key) {
  return explained_number(point.at(key).at("n"));
}

/// The difference of two means as a term. It has no interval, because the difference of two
/// intervals' ends is not an interval's end.
ExplainedTerm after(const Field& point, const char* key, const char* before, const char* what) {
  return {.what = what,
          .value = mean_of(point, key) - mean_of(point, before),
          .formula = fmt::format("mean of {} - mean of {}", key, before)};
}

/// Adds queue, prompt and output times up to `key` as differences of means. All completed requests
/// have a queue_s and an e2e_s, but only requests with tokens have a ttft_s, and means over fewer
/// requests cannot be subtracted from means over all.
void add_moments(Explanation& out, const Field& point, std::string_view key) {
  const bool all_answer = count_of(point, "ttft_s") == count_of(point, "queue_s");
  if (!all_answer && key != "queue_s") {
    out.notes.push_back(fmt::format(
        "{} of {} completed requests have a first token, and the result has no separate queue_s "
        "and e2e_s for these: {}",
        count_text(count_of(point, "ttft_s")), count_text(count_of(point, "queue_s")),
        key == "ttft_s" ? "ttft_s has no terms" : "e2e_s is not split at the first token"));
    if (key == "ttft_s") return;
  }
  out.terms.push_back({.what = "queue: from arrival to the request's first iteration",
                       .value = mean_of(point, "queue_s"),
                       .low = of(point, "queue_s", "mean", "_low"),
                       .high = of(point, "queue_s", "mean", "_high"),
                       .formula = "mean of queue_s"});
  if (key != "queue_s" && all_answer) {
    out.terms.push_back(
        after(point, "ttft_s", "queue_s",
              "prompt: from there to the end of the iteration with the first token"));
  }
  if (key == "e2e_s") {
    out.terms.push_back(
        all_answer
            ? after(point, "e2e_s", "ttft_s", "output: from there to the last token")
            : after(point, "e2e_s", "queue_s", "prompt and output: from there to the last token"));
  }
  resolve(out, point, fmt::format("mean of {}", key), "s", mean_of(point, key));
}

ExplainedTable percentiles(const Field& point, std::string_view key) {
  ExplainedTable table{"percentiles", {}};
  for (const char* at : kPercentiles) {
    const auto value = of(point, key, at);
    if (!value) continue;
    table.rows.push_back(
        {at, std::nullopt,
         time_text(*value) + range_text(of(point, key, at, "_low"), of(point, key, at, "_high"))});
  }
  return table;
}

/// Rows about waiting and prompts. They are not terms, because they describe the service, not these
/// requests.
ExplainedTable waiting(const Field& point) {
  const Field use = point.at("resources");
  ExplainedTable table{"the service during this time", {}};
  table.rows.push_back({"a request waited", explained_number(use.at("waiting")), "of the time"});
  const double preemptions = explained_number(point.at("preemptions"));
  table.rows.push_back(
      {"preemptions", std::nullopt,
       preemptions == 0
           ? std::string{"none"}
           : fmt::format("{}, after which {} tokens were computed again; how long requests waited "
                         "for that is not in the result",
                         count_text(preemptions),
                         count_text(explained_number(point.at("recomputed_tokens"))))});
  const double completed = explained_number(point.at("completed"));
  if (completed > 0) {
    std::string text = fmt::format("{:.6g} tokens on average",
                                   explained_number(point.at("prompt_tokens")) / completed);
    if (const auto budget = maybe_number(use, "max_num_batched_tokens")) {
      text += fmt::format(", with at most {} per iteration", count_text(*budget));
    }
    table.rows.push_back({"a prompt", std::nullopt, std::move(text)});
  }
  if (const auto hits = maybe_number(point, "prefix_hit_rate"); hits && *hits > 0) {
    table.rows.push_back({"prompt tokens that the prefix cache held", hits, ""});
  }
  if (const double moved = explained_number(use.at("transfers")); moved > 0) {
    table.rows.push_back(
        {"caches moved between replicas", std::nullopt,
         fmt::format("{}, {} each on average, and {} before that for memory", count_text(moved),
                     time_text(explained_number(use.at("transfer_s"))),
                     time_text(explained_number(use.at("transfer_wait_s"))))});
  }
  return table;
}

/// Adds the iterations that a token waits for, by contents and by operator.
void add_iterations(Explanation& out, const Field& point) {
  const Field phases = point.at("phases");
  const double busy = explained_number(point.at("busy"));
  if (busy > 0) {
    ExplainedTable table{"time in which an iteration ran", {}};
    for (const auto& [key, what] : {std::pair{"decodes", "iterations of only decodes"},
                                    std::pair{"mixed", "iterations of prompts and decodes"},
                                    std::pair{"prompts", "iterations of only prompts"}}) {
      table.rows.push_back({what, explained_number(phases.at(key)) / busy, ""});
    }
    out.tables.push_back(std::move(table));
  }
  const auto mean = point.find("mean_iteration");
  if (!mean) {
    out.notes.emplace_back("the result contains no mean iteration");
    return;
  }
  const double took = explained_number(mean->at("mean_s"));
  if (took > 0)
    out.notes.push_back(fmt::format(
        "{:.4g} times as long as the mean of {} iterations, which is {}", *out.value / took,
        count_text(explained_number(mean->at("iterations"))), time_text(took)));
  out.tables.push_back(mean_by_family(*mean));
}

}  // namespace

Explanation explain_latency(const Field& point, std::string_view key) {
  Explanation out{.key = std::string{key},
                  .point = point.at("label").string(),
                  .unit = "s",
                  .value = of(point, key, "mean"),
                  .low = of(point, key, "mean", "_low"),
                  .high = of(point, key, "mean", "_high"),
                  .basis = service_basis(point)};
  if (!out.value) fail_without(point, key, "no request has this time");
  const bool gaps = key == "itl_s";
  out.notes.push_back(fmt::format("the mean of {} {}", count_text(count_of(point, key)),
                                  gaps ? "gaps between tokens" : "completed requests"));
  if (gaps || key == "tpot_s") {
    out.notes.emplace_back(
        "no terms sum to it: how much of each iteration a request waited for is not in the result");
    out.tables.push_back(percentiles(point, key));
    add_iterations(out, point);
  } else {
    add_moments(out, point, key);
    out.tables.push_back(percentiles(point, key));
  }
  out.tables.push_back(waiting(point));
  return out;
}

}  // namespace kvsim
