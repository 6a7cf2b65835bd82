#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace kvsim {

/// All of a file, or of a pipe ("<(...)", /dev/stdin) up to its end. Of a pipe that no program
/// writes to, the first byte is waited for 5 s.
/// Errors: InputError "PATH: ..." for folders and devices, for what cannot be read, for more than
/// `max` bytes.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t max);

/// Errors: InputError "PATH: cannot be read: ..." unless `path` is a regular file; for readers that
/// need its size or several passes.
void expect_regular_file(const std::filesystem::path& path);

}  // namespace kvsim
