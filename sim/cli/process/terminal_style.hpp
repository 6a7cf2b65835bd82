#pragma once

#include <string_view>

#include "sim/report/text/text_style.hpp"

namespace kvsim {

/// What --color says: "auto", "always" or "never"; before any thread. Errors: InputError.
void choose_colour(std::string_view when);

/// terminal_width(), with colour where --color, NO_COLOR and TERM allow it and standard output is a
/// terminal, and sparklines on a terminal whose locale is UTF-8.
[[nodiscard]] TextStyle terminal_style();

}  // namespace kvsim
