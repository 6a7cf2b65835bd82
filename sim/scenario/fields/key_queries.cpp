// Look-ups in the key table, and keys as text for docs/scenarios.md, the schema and completion.

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "models/units/check.hpp"
#include "models/units/units_format.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using Kind = KeyType::Kind;

std::string kind_text(const KeyType& type) {
  switch (type.kind) {
    case Kind::kNone:
      return "null";
    case Kind::kText:
      return "text";
    case Kind::kPath:
      return "path";
    case Kind::kName:
      return "name";
    case Kind::kInteger:
      return "integer";
    case Kind::kNumber:
      return "number";
    case Kind::kBoolean:
      return "boolean";
    case Kind::kSize:
      return "size";
    case Kind::kTime:
      return "time";
    case Kind::kBandwidth:
      return "bandwidth";
    case Kind::kFormat:
    case Kind::kCacheFormat:
    case Kind::kWeights:
      return "format";
    case Kind::kBudget:
      return "number or text";
    case Kind::kPointer:
      return "JSON pointer";
    case Kind::kPrices:
    case Kind::kAnyObject:
      return "object";
    case Kind::kQuantity:
      return "number, size, time or boolean";
    case Kind::kAny:
      return "any";
    case Kind::kObject:
      return scenario_object(type.words).name_instead ? "name, or object" : "object";
  }
  return "";
}

std::string kind_range(const KeyType& type) {
  switch (type.kind) {
    case Kind::kInteger:
      return type.high == static_cast<double>(kLargestSeed)
                 ? "0 to 2⁵³ − 1"
                 : fmt::format("{} to {}", with_commas(static_cast<std::int64_t>(type.low)),
                               with_commas(static_cast<std::int64_t>(type.high)));
    case Kind::kNumber:
      return type.high >= 1e300 ? "" : fmt::format("{:g} to {:.7g}", type.low, type.high);
    case Kind::kSize:
    case Kind::kTime:
    case Kind::kBandwidth:
      return type.above ? "above 0" : "at least 0";
    case Kind::kBudget:
      return fmt::format("a share in (0, 1], or at least {:g} entries", type.low);
    case Kind::kName: {
      std::vector<std::string> words = names_of(type);
      for (std::string& word : words) word = "`" + word + "`";
      return fmt::format("{}", fmt::join(words, ", "));
    }
    default:
      return "";
  }
}

}  // namespace

const ScenarioObject& scenario_object(std::string_view name) {
  const std::span<const ScenarioObject> objects = scenario_objects();
  const auto found = std::find_if(objects.begin(), objects.end(),
                                  [&](const ScenarioObject& one) { return one.name == name; });
  KVSIM_CHECK(found != objects.end(), "no object of scenarios is called {}", name);
  return *found;
}

const ScenarioKey& scenario_key(std::string_view object, std::string_view key) {
  const std::span<const ScenarioKey> keys = scenario_object(object).keys;
  const auto found = std::find_if(keys.begin(), keys.end(),
                                  [&](const ScenarioKey& one) { return one.name == key; });
  KVSIM_CHECK(found != keys.end(), "no key of {} is called {}", object, key);
  return *found;
}

std::vector<std::string> scenario_key_names(std::string_view object) {
  std::vector<std::string> names;
  for (const ScenarioKey& key : scenario_object(object).keys) names.emplace_back(key.name);
  return names;
}

std::vector<std::string> names_of(const KeyType& type) {
  if (type.names != nullptr) return type.names();
  std::vector<std::string> words;
  std::string_view rest = type.words;
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(", "), rest.size());
    words.emplace_back(rest.substr(0, comma));
    rest.remove_prefix(std::min(comma + 2, rest.size()));
  }
  return words;
}

std::string type_text(const ScenarioKey& key) {
  std::string text = kind_text(key.type);
  if (key.other.kind != Kind::kNone) text += ", or " + kind_text(key.other);
  switch (key.values) {
    case KeyValues::kOne:
      return text;
    case KeyValues::kPoints:
      return text + "; or list";
    case KeyValues::kMany:
      return text + ", or list";
    case KeyValues::kList:
      return "list of " + text + (text == "object" ? "s" : "");
  }
  return text;
}

std::string range_text(const ScenarioKey& key) {
  std::string text = kind_range(key.type);
  const std::string other = kind_range(key.other);
  if (!text.empty() && !other.empty()) text += ", ";
  text += other;
  if (key.max_items > 0)
    text += fmt::format("at most {}", with_commas(static_cast<std::int64_t>(key.max_items)));
  return text;
}

std::string help_text(const ScenarioKey& key) {
  return key.alias_of.empty() ? std::string{key.help}
                              : fmt::format("{}; another name of {}", key.help, key.alias_of);
}

std::vector<std::string> scenario_pointers() {
  std::vector<std::string> pointers;
  const auto add = [&](const auto& again, std::string_view object,
                       const std::string& above) -> void {
    for (const ScenarioKey& key : scenario_object(object).keys) {
      if (key.values == KeyValues::kList) continue;  // items of lists have no names
      std::string pointer = fmt::format("{}/{}", above, key.name);
      for (const KeyType* type : {&key.type, &key.other}) {
        if (type->kind == Kind::kObject) again(again, type->words, pointer);
      }
      pointers.push_back(std::move(pointer));
    }
  };
  add(add, "scenario", "");
  return pointers;
}

}  // namespace kvsim
