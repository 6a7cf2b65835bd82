#pragma once

#include <optional>

#include "sim/batch/account/intervals.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// Returns the range of batches and GPU counts with which `spec` fits. `startup`: that of the run,
/// for a paged engine. Costs tens of evaluations of a point's memory. Errors: as run_static.
[[nodiscard]] FitRange fit_range(const StaticSpec& spec,
                                 const std::optional<EngineStartup>& startup);

/// Sets `oom_low` and `oom_high` of the intervals of `result`, the result of `spec` with
/// StaticOptions::intervals. Costs up to two more runs. Errors: as run_static.
void find_oom_range(const StaticSpec& spec, StaticResult& result);

}  // namespace kvsim
