#pragma once

// Headers that most files of the core include, and functions that Emscripten's C++ library may not
// have: CMake includes this before every file (sim/explorer/wasm/CMakeLists.txt).

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#ifndef __cpp_lib_bit_cast
namespace std {
/// The compiler supports it; libc++ has it since version 14.
template <class To, class From>
constexpr To bit_cast(const From& value) noexcept {
  return __builtin_bit_cast(To, value);
}
}  // namespace std
#endif
