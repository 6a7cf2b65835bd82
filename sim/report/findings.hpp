#pragma once

// One sentence that says what a result means: what compression changes, and what limits the answer.
// Each is a function of results by rules; every rule has a test
// (tests/sim/report/test_findings.cpp).

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "sim/plan/plan_result.hpp"
#include "sim/report/run_report.hpp"
#include "sim/report/scenario_sweep.hpp"

namespace kvsim {

/// A method has to be better by this share to be named as a gain: a reader's threshold, not an
/// error bound.
inline constexpr double kWorthNaming = 0.05;

/// One case: points that differ only in their method.
struct MethodCase {
  struct Rival {
    std::string label;            // "snapkv budget 20 %"
    bool runs = false;            // fits, or serves every request
    std::optional<double> value;  // of the metric; higher is better
  };
  std::optional<Rival> full;          // the full cache, if it is among the points
  std::optional<double> cache_share;  // of the memory for a cache, what the full cache fills
  std::vector<Rival> methods;         // all others
};

/// Words of a metric and of what running means.
struct CaseWords {
  std::string runs, run;  // "fits", of several "fit"
  std::string fails;      // "runs out of memory"
  std::string gain;       // of the best method; {} is how many times: "decodes {} times as fast"
  std::string only;  // if the full cache has 0 of the metric: "keeps requests within their bounds"
  std::string no_gain;  // "no method decodes more than 5 % faster"
};
[[nodiscard]] CaseWords static_case_words();
/// `by_bounds`: the metric is the share of requests within their bounds, else the inverse of E2E
/// p50.
[[nodiscard]] CaseWords service_case_words(bool by_bounds);

/// The finding of all cases together. Empty without cases.
[[nodiscard]] std::string finding_of(const std::vector<MethodCase>& cases, const CaseWords& words);

/// Of the points of a run. Empty without points.
[[nodiscard]] std::string points_finding(const RunReport& report);
/// The same, then that of its replay. Empty if there is neither.
[[nodiscard]] std::string run_finding(const RunReport& report);
/// Which method errs least where methods hold equal bytes.
[[nodiscard]] std::string replay_finding(const ReplayResult& replay);
/// Of one question of a plan.
[[nodiscard]] std::string plan_finding(const PlanResult& plan, const PlanGroup& group);
/// Of a sweep over a scenario's keys.
[[nodiscard]] std::string sweep_finding(const ScenarioSweep& sweep);

/// The candidate that a plan's answer is compared with: the full cache on the same GPUs, or for
/// fewest_gpus the full cache on its best GPUs. Null if there is none, or if `best` is it.
[[nodiscard]] const PlanCandidate* full_cache_of(const PlanResult& plan, const PlanGroup& group,
                                                 const PlanCandidate& best);
/// "positions", "kv_capacity", …: what keeps the answer from being better; empty if unknown.
[[nodiscard]] std::string limited_by(const PlanCandidate& one);

}  // namespace kvsim
