#include "sim/scenario/method_field.hpp"

#include <cmath>
#include <cstdint>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/methods/named.hpp"

namespace kvsim {
namespace {

constexpr double kMostEntries = 2147483647.0;

ParamValue read_param(const Field& field) {
  const auto& value = field.raw();
  if (value.is_boolean()) return field.boolean();
  if (value.is_string()) return field.string();
  if (value.is_number_float()) return field.number(-1e300, 1e300);
  if (value.is_number()) return field.integer(INT64_MIN, INT64_MAX);
  field.expected("a number, a word, true or false");
}

}  // namespace

Budget read_budget(const Field& field) {
  constexpr std::string_view kWanted = "a fraction in (0, 1] or a whole number of entries above 1";
  if (!field.is_number()) field.expected(kWanted);
  const double value = field.raw().get<double>();
  if (value > 0 && value <= 1) return {.fraction = value};
  if (!(value > 1) || value > kMostEntries || value != std::floor(value)) field.expected(kWanted);
  return {.entries = static_cast<std::int64_t>(value)};
}

double budget_number(const Budget& budget) {
  return budget.fraction > 0 ? budget.fraction : static_cast<double>(budget.entries);
}

std::vector<MethodSpec> read_methods(const Field& field) {
  if (field.is_string()) return {MethodSpec{canonical_method(field.string()), {}, {}}};
  if (!field.is_object()) field.expected("a method's name, or an object with its name");
  MethodSpec spec{canonical_method(field.at("name").string()), {}, {}};
  for (const auto& [key, value] : field.members()) {
    if (key == "name" || key == "budget" || key == "measured_on" || value.is_null()) continue;
    spec.params[key] = read_param(value);
  }
  const auto budgets = field.find("budget");
  if (!budgets) return {spec};
  std::vector<MethodSpec> specs;
  for (const Field& budget : budgets->one_or_more()) {
    spec.budget = read_budget(budget);
    specs.push_back(spec);
  }
  return specs;
}

std::string method_label(const MethodSpec& spec) {
  std::string text = spec.name;
  if (spec.budget) {
    text += spec.budget->fraction > 0 ? fmt::format(" budget {:.4g} %", spec.budget->fraction * 100)
                                      : fmt::format(" budget {}", spec.budget->entries);
  }
  for (const auto& [name, value] : spec.params) text += fmt::format(" {} {}", name, to_text(value));
  return text;
}

}  // namespace kvsim
