#pragma once

#include "sim/cli/arguments.hpp"

namespace kvsim {

/// Whether a command that writes a results folder puts report.html into it.
[[nodiscard]] inline bool writes_page(const Arguments& arguments) {
  return !arguments.has("no-report") && !arguments.has("no-figures");
}

}  // namespace kvsim
