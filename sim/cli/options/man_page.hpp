#pragma once

#include <string>

#include "sim/cli/options/command.hpp"

namespace kvsim {

/// Manual pages in roff (man macros), generated from the same table as the help: kvsim(1), and
/// kvsim-COMMAND(1) with dashes for blanks in the name.
[[nodiscard]] std::string general_man_page();
[[nodiscard]] std::string man_page(const Command& command);

}  // namespace kvsim
