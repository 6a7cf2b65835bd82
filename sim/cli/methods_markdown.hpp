#pragma once

#include <string>

namespace kvsim {

/// docs/methods.md: every method of the catalogue with its axes, laws and parameters.
[[nodiscard]] std::string methods_markdown();

}  // namespace kvsim
