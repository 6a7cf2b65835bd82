#pragma once

// The part of JSON Schema (2020-12) that scenario_schema() uses. An unknown keyword fails the test,
// because its rule would not be checked.

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

namespace kvsim::test {

class JsonSchema {
 public:
  explicit JsonSchema(nlohmann::json root) : root_(std::move(root)) {}  // braces would make a list
  [[nodiscard]] bool accepts(const nlohmann::json& value) const { return holds(root_, value); }

 private:
  using json = nlohmann::json;

  static bool is_of(const std::string& type, const json& value) {
    if (type == "null") return value.is_null();
    if (type == "boolean") return value.is_boolean();
    if (type == "string") return value.is_string();
    if (type == "array") return value.is_array();
    if (type == "object") return value.is_object();
    if (type == "number") return value.is_number();
    if (type == "integer") {
      return value.is_number() && std::floor(value.get<double>()) == value.get<double>();
    }
    throw std::logic_error{"type " + type};
  }
  static bool is_of_one(const json& types, const json& value) {
    if (types.is_string()) return is_of(types, value);
    return std::any_of(types.begin(), types.end(),
                       [&](const json& type) { return is_of(type, value); });
  }
  [[nodiscard]] bool members_hold(const json& schema, const json& value) const {
    const json known = schema.value("properties", json::object());
    const json others = schema.value("additionalProperties", json(true));
    for (const auto& [key, member] : value.items()) {
      if (known.contains(key) ? !holds(known[key], member) : !holds(others, member)) return false;
    }
    const json required = schema.value("required", json::array());
    return std::all_of(required.begin(), required.end(),
                       [&](const json& key) { return value.contains(key.get<std::string>()); });
  }
  [[nodiscard]] bool holds(const json& schema, const json& value) const {
    if (schema.is_boolean()) return schema.get<bool>();
    for (const auto& [word, rule] : schema.items()) {
      if (!follows(word, rule, value)) return false;
    }
    return !value.is_object() || members_hold(schema, value);
  }
  [[nodiscard]] bool follows(const std::string& word, const json& rule, const json& value) const {
    static const std::set<std::string> silent{"$schema",  "$id",         "$defs",
                                              "title",    "description", "default",
                                              "required", "properties",  "additionalProperties"};
    if (silent.contains(word)) return true;
    if (word == "$ref") {
      return holds(root_.at(json::json_pointer{rule.get<std::string>().substr(1)}), value);
    }
    if (word == "type") return is_of_one(rule, value);
    if (word == "const") return value == rule;
    if (word == "enum") return std::find(rule.begin(), rule.end(), value) != rule.end();
    if (word == "oneOf") {
      return std::count_if(rule.begin(), rule.end(),
                           [&](const json& one) { return holds(one, value); }) == 1;
    }
    if (word == "minimum") return !value.is_number() || value >= rule;
    if (word == "maximum") return !value.is_number() || value <= rule;
    if (word == "exclusiveMinimum") return !value.is_number() || value > rule;
    if (word == "minLength") return !value.is_string() || value.get<std::string>().size() >= rule;
    if (word == "minItems") return !value.is_array() || value.size() >= rule;
    if (word == "maxItems") return !value.is_array() || value.size() <= rule;
    if (word == "items") {
      return !value.is_array() || std::all_of(value.begin(), value.end(),
                                              [&](const json& one) { return holds(rule, one); });
    }
    if (word == "pattern") {
      return !value.is_string() ||
             std::regex_search(value.get<std::string>(), std::regex{rule.get<std::string>()});
    }
    throw std::logic_error{"keyword " + word};
  }

  json root_;
};

}  // namespace kvsim::test
