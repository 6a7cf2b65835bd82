#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace kvsim {

/// As files and stdout hold it: indented by 2, arrays of plain values on one line, a newline at the
/// end. Bytes that are no UTF-8 become U+FFFD.
[[nodiscard]] std::string to_file_text(const nlohmann::ordered_json& document);

}  // namespace kvsim
