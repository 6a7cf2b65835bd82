#pragma once

#include <string_view>

#include "sim/report/text/text_style.hpp"

namespace kvsim {

/// Applies --color: "auto", "always" or "never". Call it before any thread starts. Errors:
/// InputError.
void choose_colour(std::string_view when);

/// The style for terminal_width() columns: colour if standard output is a terminal and --color,
/// NO_COLOR and TERM allow it, sparklines if it is a terminal with a UTF-8 locale.
[[nodiscard]] TextStyle terminal_style();

}  // namespace kvsim
