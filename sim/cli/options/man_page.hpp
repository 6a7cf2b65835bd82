#pragma once

#include <string>

#include "sim/cli/options/command.hpp"

namespace kvsim {

/// Manual pages in roff (man macros), made of the same table as the help: kvsim(1), and
/// kvsim-COMMAND(1) with blanks in the name as dashes.
[[nodiscard]] std::string general_man_page();
[[nodiscard]] std::string man_page(const Command& command);

}  // namespace kvsim
