#pragma once

// Constructors of rows and types of the key table (keys.cpp).

#include <string>
#include <string_view>
#include <vector>

#include "sim/scenario/fields/keys.hpp"

namespace kvsim::key_rows {

using Kind = KeyType::Kind;

constexpr KeyType text() { return {.kind = Kind::kText}; }
constexpr KeyType path() { return {.kind = Kind::kPath}; }
/// One of the names in `words`, joined by ", "; any name if `words` is empty.
constexpr KeyType name(std::string_view words = {}) {
  return {.kind = Kind::kName, .words = words};
}
constexpr KeyType name_of(std::vector<std::string> (*names)()) {
  return {.kind = Kind::kName, .names = names};
}
template <class Low, class High>
constexpr KeyType integer(Low low, High high) {
  return {
      .kind = Kind::kInteger, .low = static_cast<double>(low), .high = static_cast<double>(high)};
}
constexpr KeyType number(double low, double high) {
  return {.kind = Kind::kNumber, .low = low, .high = high};
}
constexpr KeyType boolean() { return {.kind = Kind::kBoolean}; }
constexpr KeyType size() { return {.kind = Kind::kSize}; }
constexpr KeyType time() { return {.kind = Kind::kTime}; }
constexpr KeyType above_0(Kind kind) { return {.kind = kind, .above = true}; }
constexpr KeyType object(std::string_view called) {
  return {.kind = Kind::kObject, .words = called};
}
constexpr KeyType of(Kind kind) { return {.kind = kind}; }

constexpr KeyType budget(double min_entries) { return {.kind = Kind::kBudget, .low = min_entries}; }

using Text = std::string_view;
constexpr ScenarioKey one(Text name, KeyType type, Text default_text, Text help,
                          KeyType other = {}) {
  return {.name = name, .type = type, .other = other, .default_text = default_text, .help = help};
}
constexpr ScenarioKey points(Text name, KeyType type, Text default_text, Text help) {
  return {.name = name,
          .type = type,
          .values = KeyValues::kPoints,
          .default_text = default_text,
          .help = help};
}
constexpr ScenarioKey many(Text name, KeyType type, Text default_text, Text help,
                           KeyType other = {}) {
  return {.name = name,
          .type = type,
          .other = other,
          .values = KeyValues::kMany,
          .default_text = default_text,
          .help = help};
}
constexpr bool kMayBeEmpty = true;
constexpr ScenarioKey list(Text name, KeyType type, Text default_text, Text help,
                           std::size_t max_items = 0, bool may_be_empty = false) {
  return {.name = name,
          .type = type,
          .values = KeyValues::kList,
          .default_text = default_text,
          .help = help,
          .max_items = max_items,
          .may_be_empty = may_be_empty};
}

/// A key of `engine` and the setting that it sets.
constexpr ScenarioKey engine(Text name, KeyType type, Text default_text, Text help,
                             EngineMember sets, KeyType other = {}) {
  return {.name = name,
          .type = type,
          .other = other,
          .default_text = default_text,
          .help = help,
          .sets = sets};
}

inline constexpr KeyType kTokens = integer(1, kMaxPointTokens);
inline constexpr KeyType kOutputTokens = integer(0, kMaxPointTokens);
inline constexpr KeyType kScale = number(1e-6, 1e6);

}  // namespace kvsim::key_rows
