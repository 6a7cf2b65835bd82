#pragma once

#include "sim/cli/command.hpp"

namespace kvsim {

[[nodiscard]] Command completion_command();

}  // namespace kvsim
