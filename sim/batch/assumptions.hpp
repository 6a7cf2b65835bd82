#pragma once

#include <string>
#include <vector>

#include "models/cost/step.hpp"
#include "sim/batch/static_run.hpp"

namespace kvsim {

/// What a run takes for granted about this model, stack and method, for its notes. With a batch of
/// 0 how much its batch holds is left out.
[[nodiscard]] std::vector<std::string> assumptions(const StaticSpec& spec, const CostInput& in);

}  // namespace kvsim
