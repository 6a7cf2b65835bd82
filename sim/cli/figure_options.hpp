#pragma once

#include <string>
#include <vector>

#include "sim/cli/arguments.hpp"
#include "sim/report/figure_style.hpp"

namespace kvsim {

/// What --formats names, each once; svg and png without it. Errors: InputError naming the nearest.
[[nodiscard]] std::vector<std::string> read_formats(const Arguments& arguments);

}  // namespace kvsim
