#pragma once

#include <vector>

#include "sim/cli/options/command.hpp"

namespace kvsim {

/// The commands `kvsim validate WHAT`, which compare the models with measured, published or
/// recorded values. A new command needs an entry in the table of command_validate.cpp, a function
/// in command_validate_WHAT.cpp, its declaration here, and a line in calibrate/start_validate.cpp.
[[nodiscard]] std::vector<Command> validate_commands();

// Defined twice: kvsim-validate has the implementations, kvsim has functions that start
// kvsim-validate with the same arguments (calibrate/start_validate.cpp). Kernels, their simulator
// and the comparisons account for a quarter of the compile time, and few users need them.
[[nodiscard]] int run_validate_allocator(const Arguments& arguments);
[[nodiscard]] int run_validate_e2e(const Arguments& arguments);
[[nodiscard]] int run_validate_kernels(const Arguments& arguments);
[[nodiscard]] int run_validate_measured(const Arguments& arguments);
[[nodiscard]] int run_validate_published(const Arguments& arguments);
[[nodiscard]] int run_validate_served(const Arguments& arguments);

}  // namespace kvsim
