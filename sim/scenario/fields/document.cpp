#include "sim/scenario/fields/document.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/error.hpp"
#include "models/units/excerpt.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

/// Keys whose object is one value, not a set of settings: merging two methods would produce
/// neither.
bool is_atomic(std::string_view key) { return key == "model" || key == "method"; }

void rebase_path(json& value, const fs::path& folder) {
  if (!value.is_string()) return;
  const fs::path path = value.get<std::string>();
  value = (folder / path).lexically_normal().generic_string();
}

void rebase_model(json& value, const fs::path& folder) {
  if (value.is_array()) {
    for (json& item : value) rebase_model(item, folder);
  } else if (value.is_object() && value.contains("config")) {
    rebase_path(value["config"], folder);
  }
}

void rebase_calibration(json& value, const fs::path& folder) {
  if (value.is_array()) {
    for (json& item : value) rebase_calibration(item, folder);
  } else if (value.is_string() && !is_calibration_word(value.get<std::string>())) {
    rebase_path(value, folder);
  }
}

void rebase_method(json& value, const fs::path& folder) {
  if (value.is_array()) {
    for (json& item : value) rebase_method(item, folder);
  } else if (value.is_object() && value.contains("measured_on")) {
    rebase_path(value["measured_on"], folder);
  }
}

void rebase_requests(json& value, const fs::path& folder) {
  if (value.is_array()) {
    for (json& item : value) rebase_requests(item, folder);
    return;
  }
  if (!value.is_object()) return;
  // Lengths may be sampled from another trace.
  for (const char* key : {"prompt_tokens", "output_tokens", "lengths"}) {
    if (value.contains(key)) rebase_requests(value[key], folder);
  }
  if (value.contains("file")) {
    json& file = value["file"];
    if (file.is_array()) {
      for (json& item : file) rebase_path(item, folder);
    } else {
      rebase_path(file, folder);
    }
  }
}

/// Rebases the paths of a scenario or of one of its groups of points.
void rebase_keys(json& keys, const fs::path& folder) {
  if (!keys.is_object()) return;
  if (keys.contains("model")) rebase_model(keys["model"], folder);
  if (keys.contains("method")) rebase_method(keys["method"], folder);
  if (keys.contains("calibration")) rebase_calibration(keys["calibration"], folder);
  if (keys.contains("requests")) rebase_requests(keys["requests"], folder);
}

/// Rebases the paths among the values that a sweep sets for these keys.
void rebase_sweep(json& sweep, const fs::path& folder) {
  if (!sweep.is_object() || !sweep.contains("axes") || !sweep["axes"].is_array()) return;
  for (json& axis : sweep["axes"]) {
    if (!axis.is_object() || !axis.contains("key") || !axis.contains("values")) continue;
    json& values = axis["values"];
    if (axis["key"] == "/model") rebase_model(values, folder);
    if (axis["key"] == "/method") rebase_method(values, folder);
    if (axis["key"] == "/calibration") rebase_calibration(values, folder);
    if (axis["key"] == "/method/measured_on" && values.is_array()) {
      for (json& item : values) rebase_path(item, folder);
    }
  }
}

/// Prepends `folder` to the paths in `document`, which are relative to it.
void rebase(json& document, const fs::path& folder) {
  if (folder.empty()) return;
  rebase_keys(document, folder);
  if (document.contains("points") && document["points"].is_array()) {
    for (json& point : document["points"]) rebase_keys(point, folder);
  }
  if (document.contains("sweep")) rebase_sweep(document["sweep"], folder);
  if (document.contains("plan") && document["plan"].is_object() &&
      document["plan"].contains("quality") && document["plan"]["quality"].is_object() &&
      document["plan"]["quality"].contains("trace")) {
    rebase_path(document["plan"]["quality"]["trace"], folder);
  }
  if (document.contains("replay") && document["replay"].is_object() &&
      document["replay"].contains("trace")) {
    rebase_path(document["replay"]["trace"], folder);
  }
}

class Loader {
 public:
  Loader(fs::path root, const std::function<void(const Field&)>& check)
      : root_{std::move(root)}, check_{check} {}

  /// `folder`: the file's folder, relative to the root file's; `name`: the file's name in it.
  json load(const fs::path& folder, const fs::path& name) {
    const fs::path path = root_ / folder / name;
    const auto known = loaded_.find(path.lexically_normal());
    if (known != loaded_.end()) return known->second;
    std::error_code status;
    const fs::path identity = fs::weakly_canonical(path, status);
    json result = resolve(Field::read_file(path.lexically_normal()), folder, identity);
    return loaded_.emplace(path.lexically_normal(), std::move(result)).first->second;
  }

  /// Merges the keys of `file` over those of the files it extends. `identity`: its canonical path,
  /// used to detect cycles.
  json resolve(const Field& file, const fs::path& folder, const fs::path& identity) {
    check_(file);
    json result = json::object();
    if (const auto bases = file.find("extends")) {
      enter(identity, *bases);
      for (const Field& base : bases->one_or_more()) {
        const fs::path target = base.string();
        if (target.empty() || !target.has_filename()) base.expected("the path of a scenario file");
        const fs::path below = (folder / target).lexically_normal();
        refuse_cycle(base, root_ / below);
        std::error_code absent;
        if (!fs::is_regular_file(root_ / below, absent)) {
          base.fail(fmt::format("no such file: {}", (root_ / below).lexically_normal().string()));
        }
        result = merged(std::move(result), load(below.parent_path(), below.filename()));
      }
      chain_.pop_back();
    }
    json own = file.raw();
    own.erase("extends");
    rebase(own, folder);
    return merged(std::move(result), own);
  }

 private:
  void enter(const fs::path& identity, const Field& place) {
    chain_.push_back(identity);
    if (chain_.size() > kDeepestExtends) {
      place.fail(fmt::format("extends files more than {} deep", kDeepestExtends));
    }
  }
  void refuse_cycle(const Field& base, const fs::path& path) const {
    std::error_code status;
    const fs::path identity = fs::weakly_canonical(path, status);
    const auto found = std::find(chain_.begin(), chain_.end(), identity);
    if (found == chain_.end()) return;
    std::vector<std::string> names;
    for (auto it = found; it != chain_.end(); ++it) names.push_back(it->filename().string());
    names.push_back(identity.filename().string());
    base.fail(fmt::format("files extend each other in a circle: {}", fmt::join(names, " -> ")));
  }

  fs::path root_;
  const std::function<void(const Field&)>& check_;
  std::vector<fs::path> chain_;
  std::map<fs::path, json> loaded_;  // so that a file extended by several others is read once
};

std::string_view kind_of(const json& value) {
  if (value.is_string()) return "a string";
  if (value.is_boolean()) return "true or false";
  return "a number";
}

/// The parser checks files; this checks text from the command line. JSON cannot represent text that
/// is not UTF-8.
void check_utf8(const std::string& text, std::string_view place) {
  try {
    (void)json(text).dump();
  } catch (const json::type_error&) {
    throw InputError{fmt::format("{}: expected UTF-8 text", place)};
  }
}

}  // namespace

std::vector<std::string> pointer_tokens(const std::string& pointer, std::string_view place) {
  const auto refuse = [&](std::string_view why) {
    throw InputError{fmt::format("{}: {}", place, why)};
  };
  if (pointer.empty() || pointer.front() != '/') {
    refuse(fmt::format("expected a JSON pointer that starts with \"/\", such as /batch, got \"{}\"",
                       excerpt(pointer)));
  }
  check_utf8(pointer, place);
  std::vector<std::string> tokens;
  for (std::size_t i = 0; i < pointer.size(); ++i) {
    const char c = pointer[i];
    if (c == '/') {
      tokens.emplace_back();
    } else if (c != '~') {
      tokens.back() += c;
    } else if (i + 1 < pointer.size() && (pointer[i + 1] == '0' || pointer[i + 1] == '1')) {
      tokens.back() += pointer[++i] == '0' ? '~' : '/';
    } else {
      refuse("\"~\" is written \"~0\" in a JSON pointer, and \"/\" inside a key \"~1\"");
    }
  }
  if (tokens.back().empty()) refuse("the last key of the pointer is empty");
  return tokens;
}

json json_or_word(const std::string& text, const std::string& place) {
  if (!json::accept(text)) {
    // A malformed list, object or quoted string is an error, not a word.
    const auto first = text.find_first_not_of(" \t");
    if (first != std::string::npos &&
        std::string_view{"[{\""}.find(text[first]) != std::string_view::npos) {
      return Field::parse(text, place).raw();  // throws with line and column
    }
    check_utf8(text, place);
    return text;
  }
  return Field::parse(text, place).raw();
}

json merged(json base, const json& overlay) {
  if (!base.is_object() || !overlay.is_object()) return overlay;
  for (const auto& [key, value] : overlay.items()) {
    if (value.is_null()) {
      base.erase(key);
    } else if (is_atomic(key) || !base.contains(key)) {
      base[key] = value;
    } else {
      base[key] = merged(std::move(base[key]), value);
    }
  }
  return base;
}

json merged_document(const fs::path& file, const std::function<void(const Field&)>& check) {
  return Loader{file.parent_path(), check}.load({}, file.filename());
}

json merged_document(const Field& root, const std::function<void(const Field&)>& check) {
  const fs::path file = root.file();
  return Loader{file.parent_path(), check}.resolve(root, {}, file);
}

void apply_override(json& document, const Override& change) {
  const std::string place = "--set " + excerpt(change.pointer);
  if (change.pointer == "/extends" || change.pointer.starts_with("/extends/")) {
    throw InputError{fmt::format(
        "{}: other files are read before --set; write a file that extends both", place)};
  }
  set_value(document, change.pointer, json_or_word(change.value, place), place);
}

namespace {

/// Whether the key `key` of points accepts an object or, in its place, the object's name.
bool takes_name(std::string_view key) {
  const std::span<const ScenarioKey> keys = scenario_object("point").keys;
  const auto found = std::find_if(keys.begin(), keys.end(),
                                  [&](const ScenarioKey& one) { return one.name == key; });
  if (found == keys.end() || found->type.kind != KeyType::Kind::kObject) return false;
  const ScenarioObject& object = scenario_object(found->type.words);
  return object.name_instead && object.keys.front().name == "name";
}

bool is_index(const std::string& token) {
  return !token.empty() && token.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

void set_value(json& document, const std::string& pointer, json value, std::string_view place) {
  const std::vector<std::string> tokens = pointer_tokens(pointer, place);
  std::string key;  // the last key that is not an index
  json* at = &document;
  std::string walked;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::string& token = tokens[i];
    const auto refuse = [&](std::string_view why) {
      throw InputError{fmt::format("{}: {}", place, why)};
    };
    if (at->is_null()) *at = json::object();
    // "method": "h2o" is short for {"name": "h2o"}.
    if (at->is_string() && takes_name(key)) *at = {{"name", *at}};
    if (!is_index(token)) key = token;
    if (at->is_object()) {
      at = &(*at)[token];
    } else if (at->is_array()) {
      if (token == "-") {
        at->push_back(nullptr);
        at = &at->back();
      } else {
        std::size_t index = 0;
        const auto [end, status] =
            std::from_chars(token.data(), token.data() + token.size(), index);
        const bool plain = status == std::errc{} && end == token.data() + token.size() &&
                           (token == "0" || token.front() != '0');
        if (!plain || index >= at->size()) {
          refuse(
              fmt::format("{} is a list of {}: expected an index in [0, {}] or \"-\", got \"{}\"",
                          excerpt(walked), at->size(), static_cast<std::int64_t>(at->size()) - 1,
                          excerpt(token)));
        }
        at = &(*at)[index];
      }
    } else {
      refuse(fmt::format("{} is {} and has no members", walked.empty() ? "/" : excerpt(walked),
                         kind_of(*at)));
    }
    walked += "/" + token;
  }
  *at = std::move(value);
}

}  // namespace kvsim
