#pragma once

#include <string>

namespace kvsim {

/// Returns `text` with Python's non-JSON numbers (Infinity, -Infinity, NaN) replaced by null,
/// padded so that columns are preserved where possible.
[[nodiscard]] std::string without_python_numbers(std::string text);

}  // namespace kvsim
