#pragma once

#include <string>

namespace kvsim {

/// `text` with the numbers that Python writes and JSON does not have (Infinity, -Infinity, NaN) as
/// null, padded so that columns stay where that is possible.
[[nodiscard]] std::string without_python_numbers(std::string text);

}  // namespace kvsim
