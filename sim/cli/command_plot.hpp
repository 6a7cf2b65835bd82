#pragma once

#include "sim/cli/options/command.hpp"

namespace kvsim {

[[nodiscard]] Command plot_command();

}  // namespace kvsim
