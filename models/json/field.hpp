#pragma once

#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "models/units/dtype.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// A value of a JSON file with its file name and JSON pointer, so that every error message names
/// the place. All input JSON is read through this class: plain `get<int>()` truncates 1.7 to 1, and
/// plain parsing hides repeated keys. Cheap to copy; copies share the parsed document.
///
/// Every reader below throws InputError "FILE: POINTER: expected …, got …" on anything else.
class Field {
 public:
  /// Parses `text`; // and /* */ comments are allowed, repeated keys and trailing text are not.
  /// `place` is the file's name in messages. Throws InputError with line and column.
  [[nodiscard]] static Field parse(std::string_view text, std::string place);
  /// Parses a file of at most 64 MiB, as parse. Throws InputError if it cannot be read.
  [[nodiscard]] static Field read_file(const std::filesystem::path& path);
  /// Reads a file written by Python: `Infinity`, `-Infinity` and `NaN` are read as null.
  [[nodiscard]] static Field read_python_file(const std::filesystem::path& path);
  /// Wraps an already built value (a scenario after `extends` and `--set`).
  [[nodiscard]] static Field wrap(nlohmann::json value, std::string place);

  [[nodiscard]] bool is_object() const;
  [[nodiscard]] bool is_array() const;
  [[nodiscard]] bool is_string() const;
  [[nodiscard]] bool is_number() const;
  [[nodiscard]] bool is_null() const;

  /// Objects. `allow_only` lists the permitted keys; its error for an unknown key suggests the
  /// nearest.
  void allow_only(std::initializer_list<std::string_view> keys) const;
  void allow_only(std::span<const std::string> keys) const;
  /// Returns the keys that are not in `keys`. Throws as allow_only for a key close to one of them.
  [[nodiscard]] std::vector<std::string> other_keys(
      std::initializer_list<std::string_view> keys) const;
  [[nodiscard]] bool has(std::string_view key) const;                   // present and not null
  [[nodiscard]] Field at(std::string_view key) const;                   // InputError if missing
  [[nodiscard]] std::optional<Field> find(std::string_view key) const;  // nullopt if absent or null
  [[nodiscard]] std::vector<std::pair<std::string, Field>> members() const;  // in sorted key order

  /// Arrays.
  [[nodiscard]] std::vector<Field> items() const;
  /// Returns the items of an array, or the value itself if it is not an array.
  [[nodiscard]] std::vector<Field> one_or_more() const;

  /// Scalars. 2.0 is an integer, 1.7 is not; bounds are inclusive.
  [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high) const;
  [[nodiscard]] double number(double low, double high) const;
  [[nodiscard]] bool boolean() const;
  [[nodiscard]] std::string string() const;
  [[nodiscard]] std::string choice(std::span<const std::string> words) const;
  [[nodiscard]] Dtype dtype() const;

  /// Quantities, written with their unit: "80 GiB".
  [[nodiscard]] Bytes bytes() const;
  [[nodiscard]] BytesPerSecond bandwidth() const;
  [[nodiscard]] FlopsPerSecond flops() const;
  [[nodiscard]] Seconds duration() const;

  /// "FILE: POINTER", for the caller's messages.
  [[nodiscard]] std::string place() const;
  [[nodiscard]] const std::string& file() const;
  [[nodiscard]] const std::string& pointer() const { return pointer_; }
  [[nodiscard]] const nlohmann::json& raw() const { return *value_; }
  /// Throws InputError: PLACE: expected `what`, got <this value>.
  [[noreturn]] void expected(std::string_view what) const;
  /// Throws InputError: PLACE: `complaint`.
  [[noreturn]] void fail(std::string_view complaint) const;
  /// Throws InputError: PLACE: <this value> is given twice; POINTER of `first` means the same.
  [[noreturn]] void repeats(const Field& first) const;

 private:
  struct Document;  // the root value and the file's name in messages
  Field(std::shared_ptr<const Document> document, const nlohmann::json* value, std::string pointer);
  [[nodiscard]] static Field root(nlohmann::json value, std::string place);
  [[noreturn]] void unknown(const std::string& key, std::span<const std::string> keys) const;
  [[nodiscard]] Field child(const nlohmann::json& value, std::string_view token) const;

  std::shared_ptr<const Document> document_;
  const nlohmann::json* value_;
  std::string pointer_;
};

}  // namespace kvsim
