#pragma once

#include <string>

#include "sim/sweep/run_sweep.hpp"

namespace kvsim {

/// Returns the function that runs a point of a scenario of that kind. Errors: InputError for a kind
/// without one.
[[nodiscard]] PointRunner runner_of(const std::string& kind);

}  // namespace kvsim
