#pragma once

#include <optional>

#include "sim/batch/account/intervals.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// The range of batches and GPU counts that `spec` fits on. `startup`: the run's, of a paged
/// engine. Costs some tens of evaluations of a point's memory. Errors: as run_static.
[[nodiscard]] FitRange fit_range(const StaticSpec& spec,
                                 const std::optional<EngineStartup>& startup);

/// Sets `oom_low` and `oom_high` of the intervals of `result`, the run of `spec` with
/// StaticOptions::intervals. Costs up to two more runs. Errors: as run_static.
void find_oom_range(const StaticSpec& spec, StaticResult& result);

}  // namespace kvsim
