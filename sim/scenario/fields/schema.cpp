#include "sim/scenario/fields/schema.hpp"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/llm/weight_format.hpp"
#include "models/methods/resolve/cache_formats.hpp"
#include "models/units/dtype.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using Kind = KeyType::Kind;

constexpr std::string_view kNumber = R"(^ *([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)? *)";
constexpr std::string_view kSizeUnit = "([KMGT]iB|[kKMGT]?B)";

ordered_json pattern(std::string regex) {
  return {{"type", "string"}, {"pattern", std::move(regex)}};
}
ordered_json size_schema() { return pattern(fmt::format("{}{} *$", kNumber, kSizeUnit)); }
ordered_json time_schema() { return pattern(fmt::format("{}(ps|ns|us|ms|s|min|h) *$", kNumber)); }

ordered_json one_of(const std::vector<ordered_json>& schemas) {
  if (schemas.size() == 1) return schemas.front();
  return {{"oneOf", schemas}};
}

enum class FormatOf : std::uint8_t { kElements, kWeights, kCache };
ordered_json format_words(FormatOf what) {
  ordered_json words = ordered_json::array();
  for (const DtypeName& dtype : kDtypes) words.push_back(dtype.name);
  for (const DtypeAlias& alias : kDtypeAliases) words.push_back(alias.name);
  if (what == FormatOf::kCache) {
    for (const std::string& name : cache_formats()) words.push_back(name);
  }
  if (what == FormatOf::kWeights) {
    for (const WeightFormat& format : builtin_weight_formats()) words.push_back(format.name);
  }
  return {{"enum", words}};
}

ordered_json value_schema(const KeyType& type);

/// The schema of an object, or also of its name if the name is enough.
ordered_json object_schema(std::string_view called) {
  const ordered_json reference{{"$ref", fmt::format("#/$defs/{}", called)}};
  if (!scenario_object(called).name_instead) return reference;
  const std::string_view names_of_model = "gpu";  // an object of a model has a path, not a name
  const KeyType& name = called == "model" ? scenario_key("point", names_of_model).type
                                          : scenario_key(called, "name").type;
  return one_of({value_schema(name), reference});
}

ordered_json value_schema(const KeyType& type) {
  switch (type.kind) {
    case Kind::kNone:
      return {{"type", "null"}};
    case Kind::kText:
      return {{"type", "string"}};
    case Kind::kPath:
      return {{"type", "string"}, {"minLength", 1}};
    case Kind::kName: {
      const std::vector<std::string> names = names_of(type);
      if (names.empty()) return {{"type", "string"}};
      return {{"enum", names}};
    }
    case Kind::kInteger:
      return {{"type", "integer"},
              {"minimum", static_cast<std::int64_t>(type.low)},
              {"maximum", static_cast<std::int64_t>(type.high)}};
    case Kind::kNumber:
      return {{"type", "number"}, {"minimum", type.low}, {"maximum", type.high}};
    case Kind::kBoolean:
      return {{"type", "boolean"}};
    case Kind::kSize:
      return size_schema();
    case Kind::kTime:
      return time_schema();
    case Kind::kBandwidth:
      return pattern(fmt::format("{}{}/s *$", kNumber, kSizeUnit));
    case Kind::kFormat:
      return format_words(FormatOf::kElements);
    case Kind::kCacheFormat:
      return format_words(FormatOf::kCache);
    case Kind::kWeights:
      return format_words(FormatOf::kWeights);
    case Kind::kBudget:
      return one_of(
          {{{"type", "number"}, {"exclusiveMinimum", 0}, {"maximum", 1}},
           {{"type", "integer"},
            {"minimum", static_cast<std::int64_t>(type.low)},
            {"maximum", 2147483647}},
           pattern(R"(^(100|[0-9]{1,2}(\.[0-9]+)?) *%$|^[1-9][0-9]{0,8} *(entries|entry)$)")});
    case Kind::kPointer:
      return pattern("^(/([^~/]|~[01])*)*/([^~/]|~[01])+$");
    case Kind::kPrices:
      return {{"type", "object"},
              {"additionalProperties",
               {{"type", {"string", "null"}}, {"pattern", R"(^[0-9]*\.?[0-9]+ [A-Za-z]+/h$)"}}}};
    case Kind::kQuantity:
      return one_of({{{"type", "number"}}, {{"type", "boolean"}}, size_schema(), time_schema()});
    case Kind::kAny:
      return ordered_json::object();
    case Kind::kAnyObject:
      return {{"type", "object"}};
    case Kind::kObject:
      return object_schema(type.words);
  }
  return {};
}

bool is_required(const ScenarioKey& key) { return key.default_text == "required"; }

ordered_json key_schema(const ScenarioKey& key, bool may_be_absent) {
  std::vector<ordered_json> schemas;
  if (may_be_absent && key.type.kind != Kind::kNone) schemas.push_back({{"type", "null"}});
  ordered_json last = value_schema(key.type);
  if (key.values != KeyValues::kList) {
    schemas.push_back(last);
    if (key.other.kind != Kind::kNone) schemas.push_back(last = value_schema(key.other));
  }
  if (key.values != KeyValues::kOne) {
    ordered_json list{{"type", "array"}, {"items", last}};
    if (!key.may_be_empty) list["minItems"] = 1;
    if (key.max_items > 0) list["maxItems"] = key.max_items;
    schemas.push_back(std::move(list));
  }
  ordered_json schema = one_of(schemas);
  const bool has_default = !key.default_text.empty() && !is_required(key);
  schema["description"] = has_default
                              ? fmt::format("{}; default: {}", help_text(key), key.default_text)
                              : help_text(key);
  return schema;
}

ordered_json members_schema(const ScenarioObject& object) {
  // A key that a point requires may be among the scenario's keys, and vice versa.
  const bool is_partial = object.name == "scenario" || object.name == "point";
  ordered_json schema{{"type", "object"}, {"properties", ordered_json::object()}};
  ordered_json required = ordered_json::array();
  for (const ScenarioKey& key : object.keys) {
    const bool may_be_absent = is_partial || !is_required(key);
    schema["properties"][std::string{key.name}] = key_schema(key, may_be_absent);
    if (!may_be_absent) required.push_back(key.name);
  }
  if (!required.empty()) schema["required"] = std::move(required);
  schema["additionalProperties"] =
      object.has_parameters ? ordered_json{{"type", {"number", "string", "boolean", "null"}}}
                            : ordered_json(false);
  return schema;
}

}  // namespace

ordered_json scenario_schema() {
  ordered_json schema{
      {"$schema", "https://json-schema.org/draft/2020-12/schema"},
      {"$id", "urn:kvsim:scenario:1"},
      {"title", "kvsim scenario"},
      {"description",
       "What `kvsim run` reads. // and /* */ comments are allowed. null is the same as leaving a "
       "key out."}};
  schema.update(members_schema(scenario_object("scenario")));
  for (const ScenarioObject& object : scenario_objects()) {
    if (object.name == "scenario") continue;
    schema["$defs"][std::string{object.name}] = members_schema(object);
  }
  return schema;
}

}  // namespace kvsim
