#include "sim/report/findings.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "sim/report/equal_bytes.hpp"
#include "sim/report/plan_report.hpp"
#include "sim/report/text.hpp"
#include "sim/scenario/fields/method_field.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr std::array<const char*, 4> kOfMethod{"method", "budget", "method_params", "measured_on"};

/// "90 %", of a share.
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

/// Of each case the points that belong to it, in the order in which cases appear.
std::vector<std::vector<std::size_t>> cases_of(const Scenario& scenario) {
  std::vector<std::vector<std::size_t>> out;
  std::map<std::string, std::size_t> known;
  for (std::size_t i = 0; i < scenario.points.size(); ++i) {
    ordered_json keys = scenario.points[i].keys;
    for (const char* key : kOfMethod) keys.erase(key);
    const auto [at, is_new] = known.emplace(
        keys.dump(-1, ' ', false, ordered_json::error_handler_t::replace), out.size());
    if (is_new) out.emplace_back();
    out[at->second].push_back(i);
  }
  return out;
}

/// Of the memory that is there for a cache, what the batch's cache takes.
std::optional<double> cache_share(const StaticResult& r) {
  const auto weights = r.peak_owners.find("weights");
  const Bytes room = r.startup                        ? r.startup->kv_cache
                     : weights == r.peak_owners.end() ? Bytes{}
                                                      : r.usable_hbm - weights->second;
  if (room <= Bytes{}) return std::nullopt;
  return static_cast<double>(r.kv_bytes.count()) / static_cast<double>(room.count());
}

MethodCase::Rival rival_of(const ScenarioPoint& point, const StaticResult& r) {
  return {.label = method_label(point.method), .runs = !r.oom, .value = r.decode_tok_s};
}

MethodCase::Rival rival_of(const ScenarioPoint& point, const ServeResult& r) {
  MethodCase::Rival out{.label = method_label(point.method),
                        .runs = r.rejected + r.unfinished == 0,
                        .value = r.slo_attained};
  if (!out.value && r.e2e.n > 0 && r.e2e.p50 > 0) out.value = 1 / r.e2e.p50;
  return out;
}

template <class Results, class Share>
std::vector<MethodCase> method_cases(const Scenario& scenario, const Results& results,
                                     Share share) {
  std::vector<MethodCase> out;
  for (const std::vector<std::size_t>& points : cases_of(scenario)) {
    MethodCase& one = out.emplace_back();
    for (const std::size_t i : points) {
      MethodCase::Rival rival = rival_of(scenario.points[i], results[i]);
      if (scenario.points[i].method.name == "full") {
        one.full = std::move(rival);
        one.cache_share = share(results[i]);
      } else {
        one.methods.push_back(std::move(rival));
      }
    }
  }
  return out;
}

/// How many times the metric of the full cache the best running method has, infinite if that is 0;
/// 0: none runs.
std::pair<double, const MethodCase::Rival*> best_gain(const MethodCase& one) {
  std::pair<double, const MethodCase::Rival*> best{0, nullptr};
  if (!one.full || !one.full->value) return best;
  double most = 0;
  for (const MethodCase::Rival& method : one.methods) {
    if (!method.runs || !method.value || *method.value <= most) continue;
    most = *method.value;
    best = {*one.full->value > 0 ? most / *one.full->value : INFINITY, &method};
  }
  return best;
}

/// Labels of the methods that run in most of these cases, and in how many.
std::pair<std::vector<std::string>, std::size_t> rescuers(
    const std::vector<const MethodCase*>& cases) {
  std::vector<std::pair<std::string, std::size_t>> counts;
  for (const MethodCase* one : cases) {
    for (const MethodCase::Rival& method : one->methods) {
      if (!method.runs) continue;
      const auto found = std::find_if(counts.begin(), counts.end(),
                                      [&](const auto& each) { return each.first == method.label; });
      if (found == counts.end()) {
        counts.emplace_back(method.label, 1);
      } else {
        ++found->second;
      }
    }
  }
  std::size_t most = 0;
  for (const auto& [label, n] : counts) most = std::max(most, n);
  std::vector<std::string> labels;
  for (const auto& [label, n] : counts) {
    if (n == most) labels.push_back(label);
  }
  return {labels, most};
}

/// "a", "a and b", "a, b and 2 more".
std::string list_words(const std::vector<std::string>& labels) {
  if (labels.size() == 1) return labels[0];
  if (labels.size() == 2) return fmt::format("{} and {}", labels[0], labels[1]);
  return fmt::format("{}, {} and {} more", labels[0], labels[1], labels.size() - 2);
}

std::string in_cases(std::size_t n, std::size_t all) {
  return all == 1 ? "" : fmt::format(" in {} of {} cases", n, all);
}

/// ": the cache is 24 % full"; empty where no case says.
std::string fullness(const std::vector<MethodCase>& cases) {
  std::optional<double> most;
  for (const MethodCase& one : cases) {
    if (one.cache_share) most = std::max(most.value_or(0), *one.cache_share);
  }
  if (!most) return "";
  return fmt::format("the cache is {}{} full", cases.size() == 1 ? "" : "at most ",
                     percent(std::min(*most, 1.0)));
}

}  // namespace

CaseWords static_case_words() {
  return {.runs = "fits",
          .run = "fit",
          .fails = "runs out of memory",
          .gain = "decodes {} times as fast",
          .only = "decodes",
          .no_gain = "no method decodes more than 5 % faster"};
}

CaseWords service_case_words(bool by_bounds) {
  CaseWords words{.runs = "serves every request",
                  .run = "serve every request",
                  .fails = "does not serve every request",
                  .gain = "answers {} times as fast (E2E p50)",
                  .only = "answers",
                  .no_gain = "no method answers more than 5 % faster (E2E p50)"};
  if (by_bounds) {
    words.gain = "keeps {} times as many requests within their bounds";
    words.only = "keeps requests within their bounds";
    words.no_gain = "no method keeps over 5 % more requests within their bounds";
  }
  return words;
}

std::string finding_of(const std::vector<MethodCase>& cases, const CaseWords& words) {
  if (cases.empty()) return "";
  const auto any = [&](auto&& has) { return std::any_of(cases.begin(), cases.end(), has); };
  const bool has_full = any([](const MethodCase& one) { return one.full.has_value(); });
  const bool has_methods = any([](const MethodCase& one) { return !one.methods.empty(); });
  if (!has_full) {
    return "The full cache is not among the points, so they do not show what compression changes.";
  }
  std::vector<const MethodCase*> failing, rescued;
  for (const MethodCase& one : cases) {
    if (!one.full || one.full->runs) continue;
    failing.push_back(&one);
    const bool helps = std::any_of(one.methods.begin(), one.methods.end(),
                                   [](const MethodCase::Rival& method) { return method.runs; });
    if (helps) rescued.push_back(&one);
  }
  const std::string full_fails =
      fmt::format("The full cache {}{}", words.fails, in_cases(failing.size(), cases.size()));
  if (!rescued.empty()) {
    const auto [labels, n] = rescuers(rescued);
    const std::string of_them = failing.size() == 1 ? "" : fmt::format(" in {} of these", n);
    return fmt::format("{}; {} {}{}.", full_fails, list_words(labels),
                       labels.size() == 1 ? words.runs : words.run, of_them);
  }
  if (!failing.empty()) {
    if (!has_methods) return fmt::format("{}.", full_fails);
    return fmt::format("{}, and no method helps.", full_fails);
  }
  if (!has_methods) {
    const std::string full = fullness(cases);
    return fmt::format("The full cache {}{}{}.", words.runs, full.empty() ? "" : ": ", full);
  }
  double gain = 0;
  const MethodCase::Rival* best = nullptr;
  for (const MethodCase& one : cases) {
    const auto [times, method] = best_gain(one);
    if (times <= gain) continue;
    gain = times;
    best = method;
  }
  if (best != nullptr && std::isinf(gain)) {
    return fmt::format("The full cache {}; only {} {}.", words.runs, best->label, words.only);
  }
  if (best != nullptr && gain > 1 + kWorthNaming) {
    return fmt::format("The full cache {}; {} {}{}.", words.runs, best->label,
                       cases.size() == 1 ? "" : "at best ",
                       fmt::format(fmt::runtime(words.gain), fmt::format("{:.3g}", gain)));
  }
  const std::string full = fullness(cases);
  return fmt::format("Compression changes nothing here: {}{}{}.", full,
                     full.empty() ? "" : ", and ", words.no_gain);
}

std::string points_finding(const RunReport& report) {
  const Scenario& scenario = *report.scenario;
  if (scenario.kind == "serve") {
    const bool by_bounds =
        std::any_of(report.serves.begin(), report.serves.end(),
                    [](const ServeResult& r) { return r.slo_attained.has_value(); });
    const auto pool_share = [](const ServeResult& r) -> std::optional<double> {
      if (r.blocks == 0) return std::nullopt;
      return static_cast<double>(r.peak_blocks) / static_cast<double>(r.blocks);
    };
    return finding_of(method_cases(scenario, report.serves, pool_share),
                      service_case_words(by_bounds));
  }
  return finding_of(method_cases(scenario, report.results, cache_share), static_case_words());
}

std::string run_finding(const RunReport& report) {
  const std::string out = points_finding(report);
  if (!report.replay) return out;
  return fmt::format("{}{}{}", out, out.empty() ? "" : " ", replay_finding(*report.replay));
}

std::string replay_finding(const ReplayResult& replay) {
  const std::vector<EqualBytes> bands = equal_bytes(replay);
  const bool only_full =
      std::all_of(replay.methods.begin(), replay.methods.end(),
                  [](const ReplayMethod& method) { return method.name == "full"; });
  if (only_full) return "Only the full cache was replayed, so there is nothing to compare.";
  if (bands.empty()) {
    return "No two methods hold equal bytes here, so their errors are not comparable.";
  }
  std::vector<std::pair<std::string, std::size_t>> wins;
  for (const EqualBytes& band : bands) {
    const std::string& name = band.methods.front()->name;
    const auto found = std::find_if(wins.begin(), wins.end(),
                                    [&](const auto& each) { return each.first == name; });
    if (found == wins.end()) {
      wins.emplace_back(name, 1);
    } else {
      ++found->second;
    }
  }
  const auto most = std::max_element(
      wins.begin(), wins.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  const EqualBytes& least = bands.front();
  const ReplayMethod& first = *least.methods.front();
  if (bands.size() == 1) {
    return fmt::format("Of the methods that hold {} of the bytes, {} has the least error ({}).",
                       share_range(least.low, least.high), first.name,
                       amount(first.rel_error_mean));
  }
  if (2 * most->second > bands.size()) {
    return fmt::format("At equal bytes {} has the least error in {} of {} comparisons.",
                       most->first, most->second, bands.size());
  }
  return fmt::format("No method leads in most of the {} comparisons at equal bytes.", bands.size());
}

std::string limited_by(const PlanCandidate& one) {
  if (one.impossible) return one.impossible->constraint;
  return one.runs_out ? one.runs_out->why.constraint : std::string{};
}

namespace {

/// "the model's 131,072 positions", "memory for the cache".
std::string limit_words(const PlanCandidate& one) {
  const std::string limit = limited_by(one);
  if (limit == "kv_capacity") return "memory for the cache";
  if (limit == "activations") return "memory for the prefill";
  if (limit == "weights") return "memory for the weights";
  if (limit == "positions") return "the positions of the model";
  if (limit == "quality") return "the quality floor";
  if (limit == "max_model_len") return "the engine's max_model_len";
  if (limit == "ttft" || limit == "tpot" || limit == "e2e") {
    std::string upper = limit;
    for (char& c : upper) c = static_cast<char>(c - 'a' + 'A');
    return limit == "e2e" ? "the bound on E2E" : fmt::format("the bound on {}", upper);
  }
  return limit;
}

std::string amount_words(const PlanGroup& group, double value) {
  return fmt::format("{} {}", plan_amount(group.question, value), plan_unit(group.question, value));
}

}  // namespace

const PlanCandidate* full_cache_of(const PlanResult& plan, const PlanGroup& group,
                                   const PlanCandidate& best) {
  if (best.method.name == "full") return nullptr;
  const bool fewest = group.question == PlanQuestion::kFewestGpus;
  const PlanCandidate* out = nullptr;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    if (one.method.name != "full") continue;
    const bool same = one.gpu == best.gpu && one.gpus_each == best.gpus_each;
    if (!fewest && !same) continue;
    const bool better =
        out == nullptr || (one.answer && (!out->answer || *one.answer < *out->answer));
    if (better) out = &one;
  }
  return out;
}

std::string plan_finding(const PlanResult& plan, const PlanGroup& group) {
  std::vector<const PlanCandidate*> full, methods;
  for (const std::size_t c : group.candidates) {
    const PlanCandidate& one = plan.candidates[c];
    (one.method.name == "full" ? full : methods).push_back(&one);
  }
  if (!group.best) return "No candidate works.";
  const PlanCandidate& best = plan.candidates[*group.best];
  if (full.empty()) {
    return "The full cache is not in this plan, so it does not show what compression changes.";
  }
  if (best.method.name == "full") {
    const std::string limit = limit_words(best);
    if (methods.empty()) {
      return limit.empty() ? "Only the full cache is planned."
                           : fmt::format("The full cache is limited by {}.", limit);
    }
    const bool all_as_good = std::all_of(methods.begin(), methods.end(), [&](auto* one) {
      return one->answer && *one->answer == *best.answer;
    });
    if (limited_by(best) == "positions") {
      return "Compression changes nothing here: the full cache reaches the positions of the model.";
    }
    if (all_as_good) {
      return fmt::format(
          "Compression changes nothing here: the full cache gives the same answer, {}.",
          amount_words(group, *best.answer));
    }
    const bool within_step = std::any_of(methods.begin(), methods.end(), [&](auto* one) {
      return one->answer && *one->answer > *best.answer;
    });
    if (group.question == PlanQuestion::kHighestRate && within_step) {
      return fmt::format(
          "Compression does not help here: no method is more than one rate_step above the full "
          "cache, {}.",
          amount_words(group, *best.answer));
    }
    return fmt::format(
        "Compression does not help here: no method does better than the full cache, {}.",
        amount_words(group, *best.answer));
  }
  const PlanCandidate* same = full_cache_of(plan, group, best);
  const std::string label = method_label(best.method);
  if (same == nullptr || (!same->answer && !same->impossible)) {
    return fmt::format("The full cache was not searched on the GPUs of the best answer, {}.",
                       label);
  }
  if (!same->answer) {
    return fmt::format("Only compression makes this possible: the full cache is limited by {}.",
                       limit_words(*same));
  }
  if (group.question == PlanQuestion::kFewestGpus) {
    return fmt::format("{} needs {}; the full cache needs {}.", label,
                       amount_words(group, *best.answer), amount_words(group, *same->answer));
  }
  return fmt::format("{} gives {:.3g} times the answer of the full cache ({} instead of {}).",
                     label, *best.answer / *same->answer, plan_amount(group.question, *best.answer),
                     amount_words(group, *same->answer));
}

std::string sweep_finding(const ScenarioSweep& sweep) {
  const auto column = [&](std::string_view name) -> const SweepColumn* {
    for (const SweepColumn& one : sweep.columns()) {
      if (one.name == name) return &one;
    }
    return nullptr;
  };
  const SweepColumn* method = column("method");
  if (method == nullptr) return "";
  const auto measure =
      std::find_if(sweep.measures().begin(), sweep.measures().end(), [](const SweepMeasure& one) {
        return one.path == "decode_tok_s" || one.path == "throughput_tok_s" ||
               one.path == "goodput";
      });
  const bool serves = sweep.plan().kind() == "serve";
  std::map<std::string, std::size_t> known;
  std::vector<MethodCase> cases;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    if (sweep.skipped(i)) continue;
    // A case is a choice of all axes but the method's.
    json key = json::array();
    const std::vector<json> values = sweep.plan().values(i);
    for (std::size_t a = 0; a < values.size(); ++a) {
      const std::string& pointer = sweep.plan().axes()[a].pointer;
      if (a != method->axis && !pointer.ends_with("/budget")) key.push_back(values[a]);
    }
    const auto [at, is_new] = known.emplace(key.dump(), cases.size());
    if (is_new) cases.emplace_back();
    MethodCase& one = cases[at->second];
    const std::string name = sweep_value_text(sweep.value(*method, i));
    const SweepColumn* budget = column("budget");
    const json share = budget == nullptr ? json(nullptr) : sweep.value(*budget, i);
    MethodCase::Rival rival{
        .label =
            share.is_null() ? name : fmt::format("{} budget {}", name, sweep_value_text(share)),
        .runs = !sweep.ran_out(i),
        .value = measure == sweep.measures().end() ? std::nullopt : sweep.measure(*measure, i)};
    if (name == "full") {
      one.full = std::move(rival);
    } else {
      one.methods.push_back(std::move(rival));
    }
  }
  CaseWords words = static_case_words();
  if (serves) {
    words = service_case_words(true);
    words.gain = "has {} times the goodput";
    words.only = "has any goodput";
    words.no_gain = "no method has over 5 % more goodput";
  } else if (measure != sweep.measures().end() && measure->path == "throughput_tok_s") {
    words.gain = "gives {} times the tokens per second";
    words.no_gain = "no method gives over 5 % more tokens per second";
  }
  return finding_of(cases, words);
}

}  // namespace kvsim
