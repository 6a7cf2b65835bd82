#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/support/scratch.hpp"

namespace kvsim::test {

/// A path for this run's files; its parent is created.
inline std::filesystem::path scratch(const std::string& name) {
  const std::filesystem::path folder = test::scratch_folder();
  std::filesystem::create_directories(folder);
  return folder / name;
}

inline std::vector<char> bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

inline std::filesystem::path sample_trace() {
  return std::filesystem::path{KVSIM_SOURCE_DIR} / "traces/samples/books-treasure-512.safetensors";
}

/// The text of an action's exception; "" without one.
template <class Error, class Action>
std::string complaint(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace kvsim::test
