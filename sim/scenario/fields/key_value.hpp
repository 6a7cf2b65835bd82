#pragma once

// Reads values of keys and checks their ranges against the key table (keys.hpp).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "models/json/field.hpp"
#include "models/units/units.hpp"
#include "sim/scenario/fields/keys.hpp"

namespace kvsim {

/// Reads the value of a key of the object named `object`. Errors: InputError unless `value` has the
/// key's type and range; ContractError if the table has no such key or the key has another type.
[[nodiscard]] std::int64_t read_integer(const Field& value, std::string_view object,
                                        std::string_view key);
[[nodiscard]] double read_number(const Field& value, std::string_view object, std::string_view key);
[[nodiscard]] std::string read_name(const Field& value, std::string_view object,
                                    std::string_view key);
/// Returns the index of the value in the key's list of names, which has the order of `Enum`.
template <class Enum>
[[nodiscard]] Enum read_enum(const Field& value, std::string_view object, std::string_view key);
[[nodiscard]] Bytes read_size(const Field& value, std::string_view object, std::string_view key);
[[nodiscard]] Seconds read_time(const Field& value, std::string_view object, std::string_view key);
[[nodiscard]] BytesPerSecond read_bandwidth(const Field& value, std::string_view object,
                                            std::string_view key);

/// Returns the same value for all spellings of a number, size, time or bandwidth (2 and 2.0, "1
/// GiB" and "1024 MiB"), and other values unchanged.
[[nodiscard]] nlohmann::json canonical_value(const nlohmann::json& value);

/// Reads the keys of an object in a scenario; nullopt for an absent key.
class KeyReader {
 public:
  /// Errors: InputError for a key that the object named `object` does not have.
  KeyReader(const Field& field, std::string_view object) : field_{field}, object_{object} {
    field_.allow_only(scenario_key_names(object_));
  }
  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key) const {
    return read(key, &read_integer);
  }
  [[nodiscard]] std::optional<double> number(std::string_view key) const {
    return read(key, &read_number);
  }
  [[nodiscard]] std::optional<std::string> name(std::string_view key) const {
    return read(key, &read_name);
  }
  [[nodiscard]] std::optional<Bytes> size(std::string_view key) const {
    return read(key, &read_size);
  }
  [[nodiscard]] std::optional<Seconds> time(std::string_view key) const {
    return read(key, &read_time);
  }
  [[nodiscard]] std::optional<BytesPerSecond> bandwidth(std::string_view key) const {
    return read(key, &read_bandwidth);
  }
  [[nodiscard]] std::optional<bool> boolean(std::string_view key) const {
    const auto value = field_.find(key);
    return value ? std::optional{value->boolean()} : std::nullopt;
  }
  [[nodiscard]] std::optional<Field> find(std::string_view key) const { return field_.find(key); }
  /// Errors: InputError if the key is absent.
  [[nodiscard]] Field at(std::string_view key) const { return field_.at(key); }

 private:
  template <class Value>
  std::optional<Value> read(std::string_view key,
                            Value (*of)(const Field&, std::string_view, std::string_view)) const {
    const auto value = field_.find(key);
    return value ? std::optional{of(*value, object_, key)} : std::nullopt;
  }

  Field field_;
  std::string_view object_;
};

/// Errors: same as read_name.
[[nodiscard]] std::size_t read_name_index(const Field& value, std::string_view object,
                                          std::string_view key);
template <class Enum>
Enum read_enum(const Field& value, std::string_view object, std::string_view key) {
  return static_cast<Enum>(read_name_index(value, object, key));
}

}  // namespace kvsim
