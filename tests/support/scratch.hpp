#pragma once

#include <filesystem>

namespace kvsim::test {

/// A folder for the files of the test cases that this process runs; it exists. ctest runs every
/// case in a process of its own, at the same time as others.
[[nodiscard]] const std::filesystem::path& scratch_folder();

}  // namespace kvsim::test
