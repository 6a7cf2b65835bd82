#pragma once

#include <filesystem>

namespace kvsim::test {

/// An existing folder for the files of the test cases that this process runs, which no other
/// process has, even one of the same cases. It is removed at the end of a run that passes.
[[nodiscard]] const std::filesystem::path& scratch_folder();

}  // namespace kvsim::test
