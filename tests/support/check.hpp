#pragma once

// Shared by all tests: relative comparison, and the folder of data that the project does not ship.

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>

namespace kvsim::test {

/// True in a build with the address sanitizer, which makes programs several times slower.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitized = true;
#elif defined(__has_feature)
inline constexpr bool kSanitized = __has_feature(address_sanitizer);
#else
inline constexpr bool kSanitized = false;
#endif

/// doctest's Approx is absolute near zero; this one is relative everywhere.
inline doctest::Approx rel(double value, double epsilon = 1e-12) {
  return doctest::Approx(value).epsilon(epsilon).scale(0);
}

/// The folder named by KVSIM_DATA_DIR; without it nullopt, and the test case is reported as
/// skipped.
/// Use: const auto data = data_dir(); if (!data) return;
inline std::optional<std::filesystem::path> data_dir() {
  if (const char* dir = std::getenv("KVSIM_DATA_DIR"); dir != nullptr && *dir != '\0') {
    return std::filesystem::path{dir};
  }
  // ctest turns a test that prints this line into a skipped one (tests/CMakeLists.txt).
  fmt::print("KVSIM-SKIPPED: KVSIM_DATA_DIR is not set\n");
  return std::nullopt;
}

}  // namespace kvsim::test
