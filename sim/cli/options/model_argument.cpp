#include "sim/cli/options/model_argument.hpp"

#include <algorithm>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

bool is_known(const std::string& name) {
  try {
    (void)find_llm(name);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Whether `name` can only be a path, not a model id: "./a", "/a", "~/a", "a/b/c", "a.json".
bool is_written_as_path(std::string_view name) {
  constexpr std::string_view kJson = ".json";
  return name.starts_with('.') || name.starts_with('/') || name.starts_with('~') ||
         name.ends_with(kJson) || name.ends_with('/') ||
         std::count(name.begin(), name.end(), '/') > 1;
}

/// Catalogue models whose names are similar to a part of the path.
std::vector<std::string> likely_models(const fs::path& path) {
  std::vector<std::string> names;
  for (const Llm& llm : builtin_llms()) names.push_back(llm.name);
  std::vector<std::string> likely;
  for (const fs::path& part : path) {
    const std::string word = part.extension() == ".json" ? part.stem().string() : part.string();
    const std::string near = word.size() > 3 && word != "config" ? nearest(word, names) : "";
    if (!near.empty() && std::find(likely.begin(), likely.end(), near) == likely.end()) {
      likely.push_back(near);
    }
  }
  return likely;
}

}  // namespace

std::optional<fs::path> model_file(const std::string& name, std::string_view place) {
  std::error_code status;
  const fs::path path = name;
  if (fs::is_directory(path, status)) {
    if (fs::is_regular_file(path / "config.json", status)) return path / "config.json";
    if (is_known(name)) return std::nullopt;  // a folder that happens to have this name
    throw InputError{fmt::format("{}: {}: this folder contains no config.json", place, name)};
  }
  if (fs::exists(path, status)) return path;
  if (is_known(name) || !is_written_as_path(name)) return std::nullopt;
  const std::vector<std::string> likely = likely_models(path);
  throw InputError{fmt::format(
      "{}: no such file: {} (looked for {}){}", place, name,
      fs::absolute(path, status).lexically_normal().string(),
      likely.empty() ? std::string{"; `kvsim list models` has the names that need no file"}
                     : fmt::format("; the catalogue has {}", fmt::join(likely, ", ")))};
}

}  // namespace kvsim
