#include "sim/report/text/csv_cells.hpp"

#include <array>
#include <charconv>
#include <cmath>

#include <nlohmann/json.hpp>

#include "models/units/check.hpp"

namespace kvsim {

std::string csv_field(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string{text};
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"') out += '"';
    out += c;
  }
  return out + "\"";
}

std::string csv_number(double value) {
  if (!std::isfinite(value)) return "";
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  return {digits.data(), end};
}

std::string csv_json(const nlohmann::ordered_json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return csv_field(value.get_ref<const std::string&>());
  return csv_field(value.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

namespace {

struct CsvOf {
  std::string operator()(MetricValue::Null /*null*/) const { return ""; }
  std::string operator()(NoMetric /*none*/) const { return ""; }
  std::string operator()(bool value) const { return value ? "1" : "0"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return csv_number(value); }
  std::string operator()(const std::string& value) const { return csv_field(value); }
  std::string operator()(const Distribution& /*times*/) const {
    throw ContractError{"a distribution is several columns"};
  }
};

}  // namespace

std::string csv_value(const MetricValue& value) { return std::visit(CsvOf{}, value.any()); }

}  // namespace kvsim
