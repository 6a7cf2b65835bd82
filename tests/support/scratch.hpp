#pragma once

#include <filesystem>

namespace kvsim::test {

/// An existing folder for the files of the test cases that this process runs. ctest runs every case
/// in a separate process, in parallel with others.
[[nodiscard]] const std::filesystem::path& scratch_folder();

}  // namespace kvsim::test
