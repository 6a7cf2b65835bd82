#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/units/units.hpp"
#include "sim/memory/vllm_log.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// Returns whether the logged value can replace a prediction: a negative one is memory that another
/// process freed meanwhile.
[[nodiscard]] bool is_stated(const std::optional<Bytes>& value);

/// Returns the names (of memory, fraction, weights, non-torch and activation peak) of the terms
/// that the log does not state. The logged pool follows from the other terms only if there are
/// none.
[[nodiscard]] std::vector<std::string> unstated_terms(const VllmLog& log);

/// Completes `log` so that a start with its values yields the logged pool. V1 at level INFO logs
/// only weights and the pool. The rest of the memory fraction is the activation peak, or non-torch
/// memory if only that is missing; if both are logged, the rest determines the GPU's memory.
/// `scenario` is the start that the log is compared with, and `stated` the same with the log's
/// values, in blocks of `block_tokens`. It supplies all values that the log does not state, so the
/// derived term contains their errors; `notes` report this. A pool in tokens only is converted by
/// the scenario's bytes per token. `warnings` name values of the log and of the scenario that are
/// unlikely to be of the same start. Errors: InputError if the remainder is negative or larger than
/// this term can be, or if the scenario's stack does not divide its memory as vLLM does;
/// `log_place` and `scenario_place` name the two in messages.
void complete_from_pool(VllmLog& log, const EngineStartup& scenario, const EngineStartup& stated,
                        std::int64_t block_tokens, const std::string& log_place,
                        const std::string& scenario_place);

}  // namespace kvsim
