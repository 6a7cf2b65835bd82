#pragma once

#include <vector>

#include "sim/cli/options/command.hpp"

namespace kvsim {

/// Every `kvsim validate WHAT`: the models held against what was measured, published or recorded.
/// One file each, command_validate_WHAT.cpp; to add one, declare it here and give it a line in the
/// table of command_validate.cpp.
[[nodiscard]] std::vector<Command> validate_commands();

[[nodiscard]] Command validate_allocator_command();
[[nodiscard]] Command validate_e2e_command();
[[nodiscard]] Command validate_kernels_command();
[[nodiscard]] Command validate_measured_command();
[[nodiscard]] Command validate_published_command();

}  // namespace kvsim
