#pragma once

#include <cstddef>
#include <filesystem>
#include <string>

namespace kvsim {

/// Returns the contents of a file, or of a pipe ("<(...)", /dev/stdin) up to its end. Waits 5 s for
/// the first byte of a pipe without a writer.
/// Throws InputError "PATH: ..." for folders and devices, for unreadable files, and for more than
/// `max` bytes.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t max);

/// Throws InputError "PATH: cannot be read: ..." unless `path` is a regular file. Used by readers
/// that need its size or several passes.
void expect_regular_file(const std::filesystem::path& path);

}  // namespace kvsim
