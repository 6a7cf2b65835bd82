#pragma once

#include <string>
#include <vector>

#include "models/cost/step.hpp"
#include "sim/serve/static_run.hpp"

namespace kvsim {

/// What a static run takes for granted about this model, stack and method, for its notes.
[[nodiscard]] std::vector<std::string> assumptions(const StaticSpec& spec, const CostInput& in);

}  // namespace kvsim
