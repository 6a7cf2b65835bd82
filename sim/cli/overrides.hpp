#pragma once

#include <vector>

#include "sim/cli/arguments.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// What --set says. Errors: InputError where one has no "=".
[[nodiscard]] std::vector<Override> read_overrides(const Arguments& arguments);

}  // namespace kvsim
