#pragma once

#include <string>
#include <string_view>

namespace kvsim {

/// Returns the 64-bit FNV-1a hash of `text` as 16 hexadecimal digits.
[[nodiscard]] std::string fingerprint(std::string_view text);

}  // namespace kvsim
