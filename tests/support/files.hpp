#pragma once

// Files and texts of tests: a separate folder, contents of files, parts of texts.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include <doctest/doctest.h>

#include "tests/support/scratch.hpp"

namespace kvsim::test {

/// An empty folder of this name in scratch_folder(); earlier contents are removed.
inline std::filesystem::path fresh(std::string_view name) {
  std::filesystem::path folder = test::scratch_folder() / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

inline void write(const std::filesystem::path& path, std::string_view text) {
  std::ofstream{path, std::ios::binary} << text;
}

/// The whole file; empty if there is none.
inline std::string text_of(const std::filesystem::path& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

/// Whether `text` contains `part`; a failing check prints `text`.
inline bool has(const std::string& text, std::string_view part) {
  INFO(text);
  return text.find(part) != std::string::npos;
}

}  // namespace kvsim::test
