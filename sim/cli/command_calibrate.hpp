#pragma once

#include "sim/cli/arguments.hpp"

namespace kvsim {

// What `kvsim calibrate` fits to; one file each, command_calibrate_NAME.cpp.
[[nodiscard]] int calibrate_measured(const Arguments& arguments);
[[nodiscard]] int calibrate_on_device(const Arguments& arguments);

}  // namespace kvsim
