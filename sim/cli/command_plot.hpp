#pragma once

#include "sim/cli/command.hpp"

namespace kvsim {

[[nodiscard]] Command plot_command();

}  // namespace kvsim
