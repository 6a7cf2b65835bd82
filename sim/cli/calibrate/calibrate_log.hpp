#pragma once

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// `kvsim calibrate --from-log`: a start-up log's values as overrides of a scenario's engine, and
/// what they change in a given scenario. Errors: InputError.
int calibrate_from_log(const Arguments& arguments);

}  // namespace kvsim
