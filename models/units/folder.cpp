#include "models/units/folder.hpp"

#include <algorithm>
#include <system_error>

#include <fmt/format.h>

#include "models/units/error.hpp"

namespace kvsim {

namespace fs = std::filesystem;

std::vector<fs::path> files_in(const fs::path& folder, std::string_view extension) {
  std::vector<fs::path> files;
  std::error_code status;
  for (fs::directory_iterator at{folder, status}, end; !status && at != end; at.increment(status)) {
    if (at->path().extension() == extension) files.push_back(at->path());
  }
  if (status) {
    throw InputError{fmt::format("{}: cannot be read: {}", folder.string(), status.message())};
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace kvsim
