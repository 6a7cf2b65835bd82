#pragma once

// What every fuzz target shares. A target reads its bytes as a user's file. InputError is an
// answer; anything else that comes out (another exception, a sanitizer's report, more memory than
// the input is worth) is a defect.

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

/// Calls `read`; returns 0, as a target does.
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
