#pragma once

#include <string_view>

namespace kvsim {

/// The program's version as set in CMake: "0.1.0".
[[nodiscard]] std::string_view kvsim_version();

}  // namespace kvsim
