#pragma once

// Internal to sim/explorer.

#include <string_view>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Reads a static scenario all of whose points the explorer can run. Errors: InputError.
[[nodiscard]] Scenario explored_scenario(std::string_view text);

}  // namespace kvsim
