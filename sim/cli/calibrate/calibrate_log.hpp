#pragma once

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// `kvsim calibrate --from-log`: converts a start-up log's values to overrides of a scenario's
/// engine, and shows their effect on a given scenario. Errors: InputError.
int calibrate_from_log(const Arguments& arguments);

}  // namespace kvsim
