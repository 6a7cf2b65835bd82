#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/units/units.hpp"
#include "sim/memory/vllm_log.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

/// Whether the log's figure may stand for a prediction: a negative one is what another process
/// freed meanwhile.
[[nodiscard]] bool is_stated(const std::optional<Bytes>& figure);

/// Of memory, fraction, weights, non-torch and activation peak those that the log does not state,
/// for people; the pool it logs follows from the rest only where there are none.
[[nodiscard]] std::vector<std::string> unstated_terms(const VllmLog& log);

/// Completes `log` so that a start with its figures finds the pool it logs. V1 at level INFO says
/// no more than weights and the pool; what these leave of the memory fraction is the activation
/// peak, or non-torch where only that is not stated, or, where both are, it tells the GPU's memory.
/// `scenario` is the start the log is held against, and `stated` the same with the log's figures
/// for its own, in blocks of `block_tokens`: it stands for whatever else the log does not state, so
/// that the term derived holds its errors, and `notes` say so. A pool given in tokens alone is of
/// the scenario's bytes a token. `warnings` say where figures of the log and of the scenario are
/// hardly of the same start. Errors: InputError where what is left is negative or more than such a
/// term can be, or the scenario's stack does not share out its memory as vLLM does; `log_place` and
/// `scenario_place` are what messages call the two.
void complete_from_pool(VllmLog& log, const EngineStartup& scenario, const EngineStartup& stated,
                        std::int64_t block_tokens, const std::string& log_place,
                        const std::string& scenario_place);

}  // namespace kvsim
