#pragma once

// Internal to sim/plan: the groups of competing candidates.

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/plan/candidate.hpp"
#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// Candidates searched one after another by one thread: a static batch's, or those of all questions
/// about one service.
struct PlanUnit {
  std::vector<std::size_t> candidates;
};

struct PlanCandidates {
  PlanResult result;                   // groups, candidates and quality; nothing searched
  std::vector<CandidateInput> inputs;  // of each candidate
  std::vector<PlanUnit> units;
};

/// Those of `scenario` after `quality` has judged. Those that no budget is left for are impossible
/// already. Errors: InputError where a price is missing.
[[nodiscard]] PlanCandidates plan_candidates(const Scenario& scenario,
                                             std::optional<QualityReport> quality);

/// Impossible::constraint of a layout that the engine refuses, and of a time or a number of bytes
/// that exceeds 64 bits.
inline constexpr std::string_view kLayoutConstraint = "layout";
inline constexpr std::string_view kOverflowConstraint = "overflow";

/// Calls body(), which searches `out`. An OverflowError is the reason that `out` has no answer. So
/// is every InputError if the plan searches layouts: the user did not give this one.
void search_candidate(const CandidateInput& in, PlanCandidate& out,
                      const std::function<void()>& body);

}  // namespace kvsim
