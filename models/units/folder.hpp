#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace kvsim {

/// Returns the files in `folder` whose names end in `extension` (".csv"), sorted. Throws InputError
/// "FOLDER: cannot be read: REASON".
[[nodiscard]] std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder,
                                                          std::string_view extension);

}  // namespace kvsim
