#pragma once

#include "sim/cli/command.hpp"

namespace kvsim {

[[nodiscard]] Command compare_command();

}  // namespace kvsim
