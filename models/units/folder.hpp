#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

namespace kvsim {

/// Files in `folder` whose names end in `extension` (".csv"), sorted. Errors: InputError "FOLDER:
/// cannot be read: REASON".
[[nodiscard]] std::vector<std::filesystem::path> files_in(const std::filesystem::path& folder,
                                                          std::string_view extension);

}  // namespace kvsim
