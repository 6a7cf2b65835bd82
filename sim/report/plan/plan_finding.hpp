#pragma once

#include <string>

#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// The finding for one question of a plan.
[[nodiscard]] std::string plan_finding(const PlanResult& plan, const PlanGroup& group);
/// The candidate to compare a plan's answer with: the full cache on the same GPUs, or for
/// min_gpus the full cache on its best GPUs. Null if there is none, or if `best` is it.
[[nodiscard]] const PlanCandidate* full_cache_of(const PlanResult& plan, const PlanGroup& group,
                                                 const PlanCandidate& best);
/// "positions", "kv_capacity", …: what limits the answer; empty if unknown.
[[nodiscard]] std::string limited_by(const PlanCandidate& one);

}  // namespace kvsim
