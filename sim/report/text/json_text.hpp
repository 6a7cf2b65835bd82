#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace kvsim {

/// The format of files and stdout: indented by 2, arrays of plain values on one line, a newline at
/// the end. Invalid UTF-8 becomes U+FFFD.
[[nodiscard]] std::string to_file_text(const nlohmann::ordered_json& document);

}  // namespace kvsim
