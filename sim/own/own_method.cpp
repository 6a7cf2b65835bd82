#include "sim/own/own_method.hpp"

#include <map>
#include <mutex>
#include <utility>

#include <fmt/format.h>

#include "models/methods/resolve/named.hpp"
#include "models/methods/resolve/own_methods.hpp"
#include "models/units/error.hpp"
#include "models/units/fingerprint.hpp"
#include "models/units/text_file.hpp"
#include "sim/own/loaders.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

struct Loaded {
  std::string name, hash;
};

/// A part of a name that refers to a file; `kind` is the class of a Python file.
struct FileOfUser {
  std::string path, kind;
};

constexpr std::string_view kPython = ".py";

std::optional<FileOfUser> file_in(const std::string& part) {
  if (const std::size_t at = part.rfind(".py:"); at != std::string::npos) {
    return FileOfUser{part.substr(0, at + kPython.size()), part.substr(at + kPython.size() + 1)};
  }
  if (part.ends_with(kPython)) {
    throw InputError{fmt::format("method \"{}\"", part), "FILE.py:CLASS",
                     fmt::format("\"{}\"", part)};
  }
  if (part.ends_with(".so") || part.ends_with(".dylib")) return FileOfUser{part, ""};
  return std::nullopt;
}

std::string load_part(const std::string& part, const FileOfUser& file, const fs::path& folder) {
  static std::mutex guard;
  static std::map<std::string, Loaded> known;  // by absolute path and class
  const fs::path path = folder / file.path;
  std::error_code status;
  if (!fs::is_regular_file(path, status)) {
    if (find_own_preset(part) != nullptr) return part;  // a loaded method, by name
    throw InputError{fmt::format("method \"{}\": no such file: {}", part, path.string())};
  }
  const std::string hash = fingerprint(read_text_file(path, kMaxOwnFile));
  const std::string key = fs::canonical(path).string() + ":" + file.kind;
  const std::scoped_lock lock{guard};
  if (const auto found = known.find(key); found != known.end()) {
    if (found->second.hash != hash) {
      throw InputError{
          fmt::format("method \"{}\": {} has changed since it was loaded; start this program again",
                      part, path.string())};
    }
    return found->second.name;
  }
  std::shared_ptr<const OwnMethod> method = file.kind.empty()
                                                ? load_library_method(path, hash)
                                                : load_python_method(path, file.kind, hash);
  std::string name = method->name;
  register_own_method(std::move(method));
  known.emplace(key, Loaded{name, hash});
  return name;
}

}  // namespace

std::string load_own_methods(const std::string& name, const fs::path& folder) {
  std::string out;
  for (std::size_t first = 0; first <= name.size();) {
    const std::size_t end = std::min(name.find('+', first), name.size());
    const std::string part = name.substr(first, end - first);
    const auto file = file_in(part);
    if (first > 0) out += '+';
    out += file ? load_part(part, *file, folder) : part;
    first = end + 1;
  }
  return out;
}

std::string method_of_user(const std::string& name, const fs::path& folder) {
  return canonical_method(load_own_methods(name, folder));
}

}  // namespace kvsim
