#pragma once

#include <vector>

#include "sim/cli/options/command.hpp"

namespace kvsim {

/// Every `kvsim validate WHAT`: compares the models with measured, published or recorded values. To
/// add one: its words in the table of command_validate.cpp, its function in
/// command_validate_WHAT.cpp, its declaration here, and a line in calibrate/start_validate.cpp.
[[nodiscard]] std::vector<Command> validate_commands();

// Defined twice: the program kvsim-validate has the functions themselves, kvsim has functions that
// start kvsim-validate with the same words (calibrate/start_validate.cpp). Kernels, their simulator
// and the comparisons take a quarter of the time to compile, and few users need them.
[[nodiscard]] int run_validate_allocator(const Arguments& arguments);
[[nodiscard]] int run_validate_e2e(const Arguments& arguments);
[[nodiscard]] int run_validate_kernels(const Arguments& arguments);
[[nodiscard]] int run_validate_measured(const Arguments& arguments);
[[nodiscard]] int run_validate_published(const Arguments& arguments);
[[nodiscard]] int run_validate_served(const Arguments& arguments);

}  // namespace kvsim
