#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "tests/support/files.hpp"

namespace kvsim::test {

/// Every file under `folder` with its text.
inline std::map<std::string, std::string> files_under(const std::filesystem::path& folder) {
  std::map<std::string, std::string> out;
  for (const auto& entry : std::filesystem::recursive_directory_iterator{folder}) {
    if (!entry.is_regular_file()) continue;
    out[entry.path().lexically_relative(folder).string()] = text_of(entry.path());
  }
  return out;
}

}  // namespace kvsim::test
