#pragma once

// Internal to sim/plan: many layouts of services, searched for their fewest GPUs.

#include <cstddef>
#include <functional>
#include <span>

#include "sim/plan/candidates.hpp"
#include "sim/plan/plan.hpp"

namespace kvsim {

/// Answers each of `candidates` (questions of fewest GPUs). Skips one (`pruned`) if its bounds show
/// that another candidate of its group needs no more GPUs, money and time at the same error; this
/// changes neither the best of the group nor its front. Candidates are evaluated in rounds, the
/// most promising first, so that no result depends on the number of threads. Ranges and points on
/// more GPUs are left to refine_layouts.
void search_layouts(PlanCandidates& all, std::span<const std::size_t> candidates,
                    const PlanOptions& options);

/// Searches `candidates` again for their ranges. Candidates without an answer keep their reason.
void refine_layouts(PlanCandidates& all, std::span<const std::size_t> candidates,
                    const PlanOptions& options);

}  // namespace kvsim
