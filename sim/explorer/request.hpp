#pragma once

// Inside of sim/explorer.

#include <string_view>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// A static scenario out of its text, all of whose points can be run here. Errors: InputError.
[[nodiscard]] Scenario explored_scenario(std::string_view text);

}  // namespace kvsim
