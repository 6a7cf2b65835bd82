#pragma once

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// `kvsim sweep SCENARIO`, and `kvsim run` of a scenario with a `sweep`. Runs every point on
/// threads and on the processes of mpirun; each finished point is stored in the results folder.
/// Returns the exit status. Errors: InputError.
[[nodiscard]] int run_scenario_sweep(const Arguments& arguments);

}  // namespace kvsim
