#pragma once

#include "sim/cli/options/command.hpp"

namespace kvsim {

[[nodiscard]] Command completion_command();

}  // namespace kvsim
