#pragma once

// Shared by all fuzz targets. A target reads its bytes as a user's file. InputError is a valid
// answer. Any other outcome is a defect: another exception, a sanitizer's report, or more memory
// than the input justifies.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "models/units/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace kvsim::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Calls `read`; returns 0, as libFuzzer requires.
template <typename Read>
int expect_answer(Read&& read) {
  try {
    read();
  } catch (const InputError&) {
  }
  return 0;
}

/// The bytes as a file, for readers that map one. A slot (0 or 1) holds one file at a time and
/// keeps its path.
[[nodiscard]] std::filesystem::path as_file(std::string_view bytes, std::size_t slot = 0);

}  // namespace kvsim::fuzz
