#include "sim/cli/process/terminal_style.hpp"

#include <cstdint>
#include <cstdlib>

#include <fmt/format.h>
#include <unistd.h>

#include "models/units/error.hpp"
#include "sim/cli/process/terminal.hpp"

namespace kvsim {
namespace {

enum class Colour : std::uint8_t { kAuto, kAlways, kNever };
Colour colour = Colour::kAuto;  // set once, before any thread

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

/// Whether the locale is UTF-8, with the C library's precedence of variables.
bool speaks_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view locale = environment(name);
    if (locale.empty()) continue;
    for (const char* word : {"UTF-8", "utf-8", "UTF8", "utf8"}) {
      if (locale.find(word) != std::string_view::npos) return true;
    }
    return false;
  }
  return false;
}

}  // namespace

void choose_colour(std::string_view when) {
  if (when == "always") {
    colour = Colour::kAlways;
  } else if (when == "never") {
    colour = Colour::kNever;
    // Progress bars read the environment.
    (void)::setenv("NO_COLOR", "1", 1);
  } else if (when != "auto") {
    throw InputError{"--color", "auto, always or never", fmt::format("\"{}\"", when)};
  }
}

TextStyle terminal_style() {
  TextStyle style{terminal_width()};
  style.verbose = false;
  const bool terminal =
      ::isatty(STDOUT_FILENO) == 1 && environment("TERM") != "dumb" && !environment("TERM").empty();
  style.colour = colour == Colour::kAlways ||
                 (colour == Colour::kAuto && terminal && environment("NO_COLOR").empty());
  style.blocks = terminal && speaks_utf8();
  return style;
}

}  // namespace kvsim
