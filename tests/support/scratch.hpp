#pragma once

#include <filesystem>

namespace kvsim::test {

/// Returns an existing folder for the files of this process's test cases. No other process shares
/// it, even with the same cases. It is removed at the end of a successful run.
[[nodiscard]] const std::filesystem::path& scratch_folder();

}  // namespace kvsim::test
