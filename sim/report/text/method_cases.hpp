#pragma once

// One sentence that interprets a result: what compression changes, and what limits the answer. Each
// is a function of results by fixed rules; every rule has a test
// (tests/sim/report/test_findings.cpp).

#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "sim/scenario/fields/method_field.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// A method must be better by this share to be reported as a gain. It is a threshold for readers,
/// not an error bound.
inline constexpr double kWorthNaming = 0.05;

/// One case: points that differ only in their method.
struct MethodCase {
  struct Rival {
    std::string label;            // "snapkv budget 20 %"
    bool runs = false;            // it fits, or serves every request
    std::optional<double> value;  // of the metric; higher is better
  };
  std::optional<Rival> full;          // the full cache, if it is among the points
  std::optional<double> cache_share;  // share of the memory for a cache that the full cache fills
  std::vector<Rival> methods;         // all others
};

/// Indices of the points of each case, in the order in which cases appear.
[[nodiscard]] std::vector<std::vector<std::size_t>> cases_of(const Scenario& scenario);
/// The cases of a scenario's points. rival(result) makes a Rival; its label is set here.
/// share(result) is the cache_share of the full cache.
template <class Result, class MakeRival, class Share>
[[nodiscard]] std::vector<MethodCase> method_cases(const Scenario& scenario,
                                                   const std::vector<Result>& results,
                                                   MakeRival rival, Share share) {
  std::vector<MethodCase> out;
  for (const std::vector<std::size_t>& points : cases_of(scenario)) {
    MethodCase& one = out.emplace_back();
    for (const std::size_t i : points) {
      MethodCase::Rival made = rival(results[i]);
      made.label = method_label(scenario.points[i].method);
      if (scenario.points[i].method.name == "full") {
        one.full = std::move(made);
        one.cache_share = share(results[i]);
      } else {
        one.methods.push_back(std::move(made));
      }
    }
  }
  return out;
}

/// Texts for a metric and for running.
struct CaseWords {
  std::string runs, run;    // "fits"; plural "fit"
  std::string fails, fail;  // "runs out of memory"; plural
  std::string gain;         // of the best method; {} is the factor: "decodes {} times as fast"
  std::string only;  // if the metric of the full cache is 0: "keeps requests within their bounds"
  std::string no_gain;  // "no method decodes more than 5 % faster"
};
[[nodiscard]] CaseWords static_case_words();
/// `by_bounds`: the metric is the share of requests within their bounds; otherwise the inverse of
/// E2E p50.
[[nodiscard]] CaseWords service_case_words(bool by_bounds);

/// The finding of all cases together. Empty if there are no cases.
[[nodiscard]] std::string finding_of(const std::vector<MethodCase>& cases, const CaseWords& words);

}  // namespace kvsim
