// kvsim explain RESULT output_tok_s, total_tok_s, request_s, goodput, mfu and mbu: the work of a
// service during its makespan, and the makespan by phase.

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/cli/explain/explain_parts.hpp"
#include "sim/serve/account/service_metrics.hpp"

namespace kvsim {
namespace {

constexpr double kRounding = 1e-9;  // relative, for quotients
constexpr double kPercent = 100;

std::string time_text(double seconds) { return to_text(Seconds{seconds}); }

/// A metric that depends on times, with its interval.
Explanation rate(const Field& point, std::string_view key) {
  return {.key = std::string{key},
          .point = point.at("label").string(),
          .unit = explained_unit(find_metric(service_metrics(), key)->info),
          .value = maybe_number(point, key),
          .low = maybe_number(point, fmt::format("{}_low", key)),
          .high = maybe_number(point, fmt::format("{}_high", key)),
          .basis = service_basis(point)};
}

/// Throws InputError if the figure is not equal to the value of its formula, as for terms with a
/// wrong sum.
void check_quotient(const Field& point, std::string_view key, double done) {
  const double makespan = explained_number(point.at("makespan_s"));
  const double value = explained_number(point.at(key));
  if (std::abs(value * makespan - done) > kRounding * std::abs(done)) {
    point.fail(fmt::format("{} of {:.12g} over a makespan_s of {:.12g} is not the {:.12g} done",
                           key, value, makespan, done));
  }
}

ExplainedTable batch_of(const Field& point) {
  ExplainedTable table{"an iteration", {}};
  const double iterations = explained_number(point.at("iterations"));
  if (iterations > 0) {
    table.rows.push_back({"output tokens", std::nullopt,
                          fmt::format("{:.4g} on average, of {} iterations",
                                      explained_number(point.at("output_tokens")) / iterations,
                                      count_text(iterations))});
  }
  if (const auto mean = point.find("mean_iteration")) {
    table.rows.push_back(
        {"batch", std::nullopt,
         fmt::format("{} decoding sequences of {} tokens and {} prompt tokens on average",
                     explained_number(mean->at("decodes")), explained_number(mean->at("tokens")),
                     explained_number(mean->at("prefill_tokens")))});
    table.rows.push_back(
        {"time", std::nullopt,
         fmt::format("{} on average (kvsim explain RESULT iteration_s: its operators)",
                     time_text(explained_number(mean->at("mean_s"))))});
  }
  return table;
}

/// The share of requests that miss a bound, as far as percentiles show it. Percentiles use the
/// nearest rank: at least 90 % of times are at or below p90; fewer than 90 % meet a bound below
/// p90.
std::string missed_text(const Field& times, double bound) {
  constexpr std::array<std::pair<const char*, double>, 4> kRanks{
      {{"p50", 0.50}, {"p90", 0.90}, {"p95", 0.95}, {"p99", 0.99}}};
  std::string kept, missed;
  std::optional<double> min, max;  // shares of requests that miss the bound
  for (const auto& [name, share] : kRanks) {
    const auto at = maybe_number(times, name);
    if (!at) return "no request has this time";
    const std::string text = fmt::format("{} of {}", name, time_text(*at));
    if (*at <= bound) {
      kept = text + " meets it";
      max = 1 - share;
    } else if (!min) {
      missed = text + " does not";
      min = 1 - share;
    }
  }
  const std::string ends = min && max ? fmt::format("more than {:.0f} % and at most {:.0f} %",
                                                    kPercent * *min, kPercent * *max)
                           : min      ? fmt::format("more than {:.0f} %", kPercent * *min)
                                      : fmt::format("at most {:.0f} %", kPercent * *max);
  return fmt::format("{}{}{}: {} of {} requests miss it", kept,
                     kept.empty() || missed.empty() ? "" : ", ", missed, ends,
                     count_text(explained_number(times.at("n"))));
}

}  // namespace

Explanation explain_rate(const Field& point, std::string_view key) {
  const bool requests = key == "request_s";
  Explanation out = rate(point, key);
  const double output = explained_number(point.at("output_tokens"));
  const double prompts = explained_number(point.at("prompt_tokens"));
  const double completed = explained_number(point.at("completed"));
  if (requests) {
    check_quotient(point, key, completed);
    out.formula = fmt::format("{} completed requests / makespan_s", count_text(completed));
  } else if (key == "output_tok_s") {
    check_quotient(point, key, output);
    out.formula = fmt::format("{} output tokens / makespan_s", count_text(output));
  } else {
    check_quotient(point, key, output + prompts);
    out.formula = fmt::format("({} prompt tokens + {} output tokens) / makespan_s",
                              count_text(prompts), count_text(output));
  }
  out.notes.push_back(point.at("bound_text").string());
  add_phases(out, point);
  if (!requests && key != "output_tok_s" && output + prompts > 0) {
    out.tables.push_back({"tokens",
                          {{"of prompts", prompts / (output + prompts), ""},
                           {"of outputs", output / (output + prompts), ""}}});
  }
  out.tables.push_back(batch_of(point));
  return out;
}

Explanation explain_goodput(const Field& point) {
  Explanation out = rate(point, "goodput");
  const auto slo = point.find("slo");
  if (!slo || !out.value) {
    fail_without(point, "goodput", "the scenario bounds no times (\"slo\")");
  }
  const double all = explained_number(point.at("requests"));
  const double good = std::round(explained_number(point.at("slo_attained")) * all);
  check_quotient(point, "goodput", good);
  const double rate_of_all = explained_number(point.at("request_s"));
  out.formula =
      fmt::format("{} of {} requests within all bounds / makespan_s of {}", count_text(good),
                  count_text(all), time_text(explained_number(point.at("makespan_s"))));
  out.terms = {{.what = "completed within all bounds", .value = *out.value},
               {.what = "completed, late", .value = rate_of_all - *out.value}};
  resolve(out, point, "request_s", "requests/s", rate_of_all);
  const double lost =
      explained_number(point.at("rejected")) + explained_number(point.at("unfinished"));
  if (lost > 0) {
    out.notes.push_back(fmt::format("{} requests were rejected or unfinished; these meet no bound",
                                    count_text(lost)));
  }
  ExplainedTable table{"how often each bound is missed", {}};
  for (const char* key : {"ttft_s", "tpot_s", "e2e_s"}) {
    if (const auto bound = maybe_number(*slo, key)) {
      table.rows.push_back({fmt::format("{}, at most {}", key, time_text(*bound)), std::nullopt,
                            missed_text(point.at(key), *bound)});
    }
  }
  out.tables.push_back(std::move(table));
  out.notes.emplace_back(
      "result.json has only percentiles, not the number of requests that miss each bound; "
      "requests.csv has every request");
  return out;
}

Explanation explain_use(const Field& point, std::string_view key) {
  const bool compute = key == "mfu";
  Explanation out = rate(point, key);
  if (!out.value) fail_without(point, key, "nothing ran");
  const double makespan = explained_number(point.at("makespan_s"));
  const double busy = explained_number(point.at("busy"));
  out.formula = compute ? "time of the arithmetic at the data sheet's rate / makespan_s"
                        : "time of the bytes at the data sheet's bandwidth / makespan_s";
  out.terms = {{.what = compute ? "arithmetic at the data sheet's rate"
                                : "bytes at the data sheet's bandwidth",
                .value = *out.value * makespan,
                .formula = fmt::format("{} x makespan_s", key)},
               {.what = "the rest of the time in which an iteration ran",
                .value = (busy - *out.value) * makespan,
                .formula = fmt::format("(busy - {}) x makespan_s", key)},
               {.what = "no iteration",
                .value = (1 - busy) * makespan,
                .formula = "(1 - busy) x makespan_s"}};
  resolve(out, point, "makespan_s", "s", makespan);
  out.notes.emplace_back("for one GPU, averaged over all");
  if (busy > 0) {
    out.notes.push_back(fmt::format("while an iteration ran: {}", percent_text(*out.value / busy)));
  }
  const auto mean = point.find("mean_iteration");
  if (!mean) {
    out.notes.emplace_back("the result contains no mean iteration");
    return out;
  }
  std::map<std::string, double> work;
  double all = 0;
  for (const Field& term : mean->at("terms").items()) {
    const double amount = compute ? explained_number(term.at("flops"))
                                  : explained_number(term.at("bytes_read")) +
                                        explained_number(term.at("bytes_written"));
    work[term.at("family").string()] += amount;
    all += amount;
  }
  ExplainedTable table{compute ? "arithmetic of a mean iteration by operator family"
                               : "bytes of a mean iteration by operator family",
                       {}};
  for (const auto& [family, amount] : work) {
    if (amount == 0) continue;
    table.rows.push_back(
        {family, amount / all,
         compute ? fmt::format("{:.4g} FLOP", amount) : to_text(Bytes{std::llround(amount)})});
  }
  std::stable_sort(table.rows.begin(), table.rows.end(),
                   [](const auto& a, const auto& b) { return *a.share > *b.share; });
  out.tables.push_back(std::move(table));
  return out;
}

}  // namespace kvsim
