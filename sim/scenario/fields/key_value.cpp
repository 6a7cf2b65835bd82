#include "sim/scenario/fields/key_value.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/check.hpp"
#include "models/units/units_parse.hpp"

namespace kvsim {
namespace {

const KeyType& type_of(std::string_view object, std::string_view key, KeyType::Kind kind) {
  const KeyType& type = scenario_key(object, key).type;
  KVSIM_CHECK(type.kind == kind, "/{}/{} has another type", object, key);
  return type;
}

/// Checks that a size, time or bandwidth of `count` is in the range of `type`. The error names
/// `what`.
void check_range(const Field& value, const KeyType& type, double count, std::string_view what) {
  if (type.above ? count > type.low : count >= type.low) return;
  value.expected(fmt::format("a {} {} {:g}", what, type.above ? "above" : "of at least", type.low));
}

}  // namespace

std::int64_t read_integer(const Field& value, std::string_view object, std::string_view key) {
  const KeyType& type = type_of(object, key, KeyType::Kind::kInteger);
  return value.integer(static_cast<std::int64_t>(type.low), static_cast<std::int64_t>(type.high));
}

double read_number(const Field& value, std::string_view object, std::string_view key) {
  const KeyType& type = type_of(object, key, KeyType::Kind::kNumber);
  return value.number(type.low, type.high);
}

std::string read_name(const Field& value, std::string_view object, std::string_view key) {
  return value.choice(names_of(type_of(object, key, KeyType::Kind::kName)));
}

std::size_t read_name_index(const Field& value, std::string_view object, std::string_view key) {
  const auto names = names_of(type_of(object, key, KeyType::Kind::kName));
  const auto found = std::find(names.begin(), names.end(), value.choice(names));
  return static_cast<std::size_t>(found - names.begin());
}

Bytes read_size(const Field& value, std::string_view object, std::string_view key) {
  const Bytes size = value.bytes();
  check_range(value, type_of(object, key, KeyType::Kind::kSize), static_cast<double>(size.count()),
              "size");
  return size;
}

Seconds read_time(const Field& value, std::string_view object, std::string_view key) {
  const Seconds time = value.duration();
  check_range(value, type_of(object, key, KeyType::Kind::kTime), time.count(), "time");
  return time;
}

BytesPerSecond read_bandwidth(const Field& value, std::string_view object, std::string_view key) {
  const BytesPerSecond bandwidth = value.bandwidth();
  check_range(value, type_of(object, key, KeyType::Kind::kBandwidth), bandwidth.count(),
              "bandwidth");
  return bandwidth;
}

nlohmann::json canonical_value(const nlohmann::json& value) {
  if (value.is_number_float() && value == std::trunc(value.get<double>()) &&
      std::abs(value.get<double>()) < 0x1p53) {
    return value.get<std::int64_t>();
  }
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  if (const auto size = parse_bytes(text)) return {{"B", size->count()}};
  if (const auto time = parse_duration(text)) return {{"s", time->count()}};
  if (const auto bandwidth = parse_bandwidth(text)) return {{"B/s", bandwidth->count()}};
  return value;
}

}  // namespace kvsim
