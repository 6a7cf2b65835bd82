#pragma once

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// `kvsim sweep SCENARIO`, and `kvsim run` of a scenario with a `sweep`: every point of it, on
/// threads and on the processes of mpirun, kept in the results folder as they are done. Returns the
/// exit status. Errors: InputError.
[[nodiscard]] int run_scenario_sweep(const Arguments& arguments);

}  // namespace kvsim
