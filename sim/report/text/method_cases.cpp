#include "sim/report/text/method_cases.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <utility>

#include <fmt/format.h>

namespace kvsim {
namespace {

using nlohmann::ordered_json;

constexpr std::array<const char*, 4> kOfMethod{"method", "budget", "method_params", "measured_on"};

/// A share as "90 %".
std::string percent(double share) { return fmt::format("{:.0f} %", 100 * share); }

/// The ratio of the best running method's metric to the full cache's, infinite if the latter is 0;
/// 0 if no method runs.
std::pair<double, const MethodCase::Rival*> best_gain(const MethodCase& one) {
  std::pair<double, const MethodCase::Rival*> best{0, nullptr};
  if (!one.full || !one.full->value) return best;
  double max = 0;
  for (const MethodCase::Rival& method : one.methods) {
    if (!method.runs || !method.value || *method.value <= max) continue;
    max = *method.value;
    best = {*one.full->value > 0 ? max / *one.full->value : INFINITY, &method};
  }
  return best;
}

/// Labels of the methods that run in the largest number of these cases, and that number.
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
  std::size_t max = 0;
  for (const auto& [label, n] : counts) max = std::max(max, n);
  std::vector<std::string> labels;
  for (const auto& [label, n] : counts) {
    if (n == max) labels.push_back(label);
  }
  return {labels, max};
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

/// ": the cache is 24 % full"; empty if no case has the number.
std::string fullness(const std::vector<MethodCase>& cases) {
  std::optional<double> max;
  for (const MethodCase& one : cases) {
    if (one.cache_share) max = std::max(max.value_or(0), *one.cache_share);
  }
  if (!max) return "";
  return fmt::format("the cache is {}{} full", cases.size() == 1 ? "" : "at most ",
                     percent(std::min(*max, 1.0)));
}

/// The largest gain over these cases, and its method; 0 if no method runs.
std::pair<double, const MethodCase::Rival*> largest_gain(
    const std::vector<const MethodCase*>& cases) {
  std::pair<double, const MethodCase::Rival*> largest{0, nullptr};
  for (const MethodCase* one : cases) {
    const auto gain = best_gain(*one);
    if (gain.first > largest.first) largest = gain;
  }
  return largest;
}

/// "h2o at best decodes 1.8 times as fast", "only h2o decodes"; empty if there is no gain.
std::string gain_words(const std::vector<const MethodCase*>& cases, const CaseWords& words) {
  const auto [gain, best] = largest_gain(cases);
  if (best == nullptr || gain <= 1 + kWorthNaming) return "";
  if (std::isinf(gain)) return fmt::format("only {} {}", best->label, words.only);
  return fmt::format("{} {}{}", best->label, cases.size() == 1 ? "" : "at best ",
                     fmt::format(fmt::runtime(words.gain), fmt::format("{:.3g}", gain)));
}

}  // namespace

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

CaseWords static_case_words() {
  return {.runs = "fits",
          .run = "fit",
          .fails = "runs out of memory",
          .fail = "run out of memory",
          .gain = "decodes {} times as fast",
          .only = "decodes",
          .no_gain = "no method decodes more than 5 % faster"};
}

CaseWords service_case_words(bool by_bounds) {
  CaseWords words{.runs = "serves every request",
                  .run = "serve every request",
                  .fails = "does not serve every request",
                  .fail = "do not serve every request",
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
    return "The full cache is not among the points, so they do not show the effect of compression.";
  }
  std::vector<const MethodCase*> failing, rescued, running;
  for (const MethodCase& one : cases) {
    if (!one.full) continue;
    if (one.full->runs) {
      running.push_back(&one);
      continue;
    }
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
    const bool compared = std::any_of(running.begin(), running.end(),
                                      [](const MethodCase* one) { return !one->methods.empty(); });
    if (!compared) return fmt::format("{}, and no method helps.", full_fails);
    const std::string gain = gain_words(running, words);
    return fmt::format("{}, where no method helps; in the other{} {}.", full_fails,
                       running.size() == 1 ? "" : "s", gain.empty() ? words.no_gain : gain);
  }
  if (!has_methods) {
    const std::string full = fullness(cases);
    return fmt::format("The full cache {}{}{}.", words.runs, full.empty() ? "" : ": ", full);
  }
  if (const std::string gain = gain_words(running, words); !gain.empty()) {
    return fmt::format("The full cache {}; {}.", words.runs, gain);
  }
  std::vector<std::string> failed;
  for (const MethodCase* one : running) {
    for (const MethodCase::Rival& method : one->methods) {
      const bool is_new = std::find(failed.begin(), failed.end(), method.label) == failed.end();
      if (!method.runs && is_new) failed.push_back(method.label);
    }
  }
  if (!failed.empty()) {
    return fmt::format("The full cache {}; {} {}, and {}.", words.runs, list_words(failed),
                       failed.size() == 1 ? words.fails : words.fail, words.no_gain);
  }
  const std::string full = fullness(cases);
  return fmt::format("Compression changes nothing here: {}{}{}.", full,
                     full.empty() ? "" : ", and ", words.no_gain);
}

}  // namespace kvsim
