#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/step.hpp"
#include "sim/batch/static_run.hpp"

namespace kvsim {

/// The assumptions of a run about this model, stack and method, for its notes. A batch of 0 omits
/// the notes on the batch's memory.
[[nodiscard]] std::vector<std::string> assumptions(const StaticSpec& spec, const CostInput& in);

/// A note if the engine, `stack` with the settings of its run, would not run the batch at once;
/// nullopt otherwise.
[[nodiscard]] std::optional<std::string> exceeded_num_seqs(const Stack& stack, std::int64_t batch);

}  // namespace kvsim
