#pragma once

#include <string>

#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// Of one question of a plan.
[[nodiscard]] std::string plan_finding(const PlanResult& plan, const PlanGroup& group);
/// The candidate that a plan's answer is compared with: the full cache on the same GPUs, or for
/// fewest_gpus the full cache on its best GPUs. Null if there is none, or if `best` is it.
[[nodiscard]] const PlanCandidate* full_cache_of(const PlanResult& plan, const PlanGroup& group,
                                                 const PlanCandidate& best);
/// "positions", "kv_capacity", …: what keeps the answer from being better; empty if unknown.
[[nodiscard]] std::string limited_by(const PlanCandidate& one);

}  // namespace kvsim
