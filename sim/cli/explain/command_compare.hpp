#pragma once

#include "sim/cli/options/command.hpp"

namespace kvsim {

[[nodiscard]] Command compare_command();

}  // namespace kvsim
