#pragma once

// Internal to sim/plan: the groups of competing candidates.

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "sim/plan/candidate.hpp"
#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// Candidates that one thread searches one after another: one static batch, or all questions about
/// one service.
struct PlanUnit {
  std::vector<std::size_t> candidates;
};

struct PlanCandidates {
  PlanResult result;                   // groups, candidates and quality; nothing searched yet
  std::vector<CandidateInput> inputs;  // one per candidate
  std::vector<PlanUnit> units;
};

/// Returns the candidates of `scenario` that `quality` admits. Candidates without an admissible
/// budget are already marked impossible. Errors: InputError if a price is missing.
[[nodiscard]] PlanCandidates plan_candidates(const Scenario& scenario,
                                             std::optional<QualityReport> quality);

/// Impossible::constraint of a layout that the engine rejects, or for which a time or a number of
/// bytes exceeds 64 bits.
inline constexpr std::string_view kLayoutConstraint = "layout";
inline constexpr std::string_view kOverflowConstraint = "overflow";

/// Calls body(), which searches `out`. Records an OverflowError as the reason why `out` has no
/// answer. Does the same for every InputError if the plan searches layouts, which the user did not
/// choose.
void search_candidate(const CandidateInput& in, PlanCandidate& out,
                      const std::function<void()>& body);

}  // namespace kvsim
