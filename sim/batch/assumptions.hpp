#pragma once

#include <string>
#include <vector>

#include "models/cost/step.hpp"
#include "sim/batch/static_run.hpp"

namespace kvsim {

/// The assumptions of a run about this model, stack and method, for its notes. A batch of 0 omits
/// the notes on the batch's memory.
[[nodiscard]] std::vector<std::string> assumptions(const StaticSpec& spec, const CostInput& in);

}  // namespace kvsim
