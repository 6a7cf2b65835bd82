#include "models/launch/flag_lists.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/json/embedded.hpp"
#include "models/units/error.hpp"

namespace kvsim::embedded {
std::span<const EmbeddedFile> launch_flags();
}  // namespace kvsim::embedded

namespace kvsim {
namespace {

constexpr std::array<std::string_view, 9> kTypes{"flag", "switch", "int",  "count",   "float",
                                                 "str",  "json",   "list", "optional"};

FlagType read_type(const Field& field) {
  const std::vector<std::string> words{kTypes.begin(), kTypes.end()};
  const std::string word = field.choice(words);
  return static_cast<FlagType>(std::find(words.begin(), words.end(), word) - words.begin());
}

std::vector<std::string> read_words(const Field& field) {
  std::vector<std::string> out;
  for (const Field& item : field.items()) out.push_back(item.string());
  return out;
}

/// Formats a value as on a command line.
std::string word_of(const Field& field) {
  return field.is_string() ? field.string() : field.raw().dump();
}

EngineFlag read_flag(const Field& field, std::size_t lists) {
  field.allow_only({"flag", "also", "type", "default", "values", "in"});
  EngineFlag out;
  out.name = field.at("flag").string();
  if (!out.name.starts_with("--")) field.at("flag").expected("a flag such as \"--host\"");
  if (const auto also = field.find("also")) out.also = read_words(*also);
  out.type = read_type(field.at("type"));
  if (const auto value = field.find("default")) out.default_value = word_of(*value);
  if (const auto values = field.find("values")) {
    for (const Field& value : values->items()) out.values.push_back(word_of(value));
  }
  const std::vector<Field> in = field.at("in").items();
  const auto last = static_cast<std::int64_t>(lists) - 1;
  if (in.size() != 2) field.at("in").expected("the first and the last list that have the flag");
  out.first = static_cast<std::size_t>(in[0].integer(0, last));
  out.last = static_cast<std::size_t>(in[1].integer(static_cast<std::int64_t>(out.first), last));
  return out;
}

bool has_spelling(const EngineFlag& flag, std::string_view name) {
  return flag.name == name ||
         std::find(flag.also.begin(), flag.also.end(), name) != flag.also.end();
}

const EngineFlag* in_list(const std::vector<EngineFlag>& flags, std::size_t list,
                          std::string_view name) {
  for (const EngineFlag& flag : flags) {
    if (flag.first <= list && list <= flag.last && has_spelling(flag, name)) return &flag;
  }
  return nullptr;
}

}  // namespace

std::pair<std::size_t, std::size_t> EngineFlags::around(EngineVersion version) const {
  std::size_t before = 0;
  while (before + 1 < lists.size() && lists[before + 1].parsed <= version) ++before;
  const bool is_between = before + 1 < lists.size() && lists[before].parsed < version;
  return {before, is_between ? before + 1 : before};
}

bool EngineFlags::is_too_old(EngineVersion version) const { return version < lists.front().parsed; }

const EngineFlag* EngineFlags::find_certain(EngineVersion version, std::string_view flag) const {
  const auto [before, after] = around(version);
  const EngineFlag* found = in_list(flags, before, flag);
  return found != nullptr && in_list(flags, after, flag) != nullptr ? found : nullptr;
}

const EngineFlag* EngineFlags::find_possible(EngineVersion version, std::string_view flag) const {
  const auto [before, after] = around(version);
  const EngineFlag* found = in_list(flags, before, flag);
  return found != nullptr ? found : in_list(flags, after, flag);
}

std::vector<std::string> EngineFlags::spellings(EngineVersion version) const {
  const auto [before, after] = around(version);
  std::vector<std::string> out;
  for (const EngineFlag& flag : flags) {
    if (flag.last < before || flag.first > after) continue;
    out.push_back(flag.name);
    out.insert(out.end(), flag.also.begin(), flag.also.end());
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

std::string EngineFlags::versions_of(std::string_view flag) const {
  std::optional<std::size_t> first, last;
  for (std::size_t list = 0; list < lists.size(); ++list) {
    if (in_list(flags, list, flag) == nullptr) continue;
    if (!first) first = list;
    last = list;
  }
  if (!first) return "";
  if (*last + 1 == lists.size()) return fmt::format("{} and later", lists[*first].version);
  return fmt::format("{} to before {}", lists[*first].version, lists[*last + 1].version);
}

EngineFlags read_engine_flags(const Field& field) {
  field.allow_only({"engine", "stack", "program", "also_programs", "model", "spelling",
                    "abbreviations", "lists", "flags"});
  EngineFlags out;
  out.engine = field.at("engine").string();
  out.stack = field.at("stack").string();
  out.program = read_words(field.at("program"));
  for (const Field& program : field.at("also_programs").items()) {
    out.also_programs.push_back(read_words(program));
  }
  const Field model = field.at("model");
  model.allow_only({"positional", "flag"});
  out.model_is_positional = model.at("positional").boolean();
  if (const auto flag = model.find("flag")) out.model_flag = flag->string();
  out.dashes =
      field.at("spelling").choice(std::array<std::string, 2>{"dashes", "exact"}) == "dashes";
  out.abbreviations = field.at("abbreviations").boolean();
  for (const Field& list : field.at("lists").items()) {
    list.allow_only({"version", "source"});
    const auto version = parse_engine_version(list.at("version").string());
    if (!version) list.at("version").expected("a version such as \"0.11\"");
    if (!out.lists.empty() && *version <= out.lists.back().parsed) {
      list.at("version").expected("a later version than the list before it");
    }
    out.lists.push_back({list.at("version").string(), *version, list.at("source").string()});
  }
  if (out.lists.empty()) field.at("lists").expected("a list of versions");
  for (const Field& item : field.at("flags").items()) {
    EngineFlag flag = read_flag(item, out.lists.size());
    for (std::size_t list = flag.first; list <= flag.last; ++list) {
      if (in_list(out.flags, list, flag.name) != nullptr) {
        item.at("flag").fail(fmt::format("{} is in list {} twice", flag.name, list));
      }
    }
    out.flags.push_back(std::move(flag));
  }
  return out;
}

const std::vector<EngineFlags>& builtin_engine_flags() {
  static const std::vector<EngineFlags> engines = [] {
    std::vector<EngineFlags> out;
    for (const auto& file : embedded::launch_flags()) {
      out.push_back(read_engine_flags(Field::parse(file.text, std::string{file.name})));
    }
    return out;
  }();
  return engines;
}

const EngineFlags* find_engine_flags(std::string_view stack) {
  const std::string_view name = stack.substr(0, stack.find_first_of("@:"));
  for (const EngineFlags& engine : builtin_engine_flags()) {
    if (engine.stack == name || (name == "vllm-v0" && engine.stack == "vllm")) return &engine;
  }
  return nullptr;
}

}  // namespace kvsim
