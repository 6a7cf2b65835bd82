#pragma once

// Internal to sim/plan: the groups of competing candidates.

#include <vector>

#include "sim/plan/candidate.hpp"
#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// Candidates searched one after another by one thread: those of one method and workload that
/// differ only in GPUs; for services, for every question.
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

}  // namespace kvsim
