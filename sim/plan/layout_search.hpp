#pragma once

// Inside of sim/plan: many layouts of services, searched for their fewest GPUs.

#include <cstddef>
#include <functional>
#include <span>

#include "sim/plan/candidates.hpp"
#include "sim/plan/plan.hpp"

namespace kvsim {

/// Answers each of `candidates` (questions of fewest GPUs), or leaves it out (`pruned`) if its
/// bounds show that another one of its group takes no more GPUs, money and time at the same error:
/// neither the best of the group nor its front changes. Candidates are evaluated in rounds, the
/// most promising first, so that no result depends on the number of threads. Ranges and ways to run
/// on more GPUs are left to refine_layouts.
void search_layouts(PlanCandidates& all, std::span<const std::size_t> candidates,
                    const PlanOptions& options);

/// Searches `candidates` again with their ranges. Those without an answer keep their reason.
void refine_layouts(PlanCandidates& all, std::span<const std::size_t> candidates,
                    const PlanOptions& options);

}  // namespace kvsim
