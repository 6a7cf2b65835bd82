#pragma once

#include <string>

#include "sim/sweep/run_sweep.hpp"

namespace kvsim {

/// The function that runs a point of a scenario of that kind. Errors: InputError for a kind that
/// has none.
[[nodiscard]] PointRunner runner_of(const std::string& kind);

}  // namespace kvsim
