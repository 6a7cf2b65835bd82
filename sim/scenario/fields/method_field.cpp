#include "sim/scenario/fields/method_field.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "models/units/number_text.hpp"
#include "sim/own/own_method.hpp"
#include "sim/scenario/fields/distinct.hpp"

namespace kvsim {
namespace {

constexpr double kMaxEntries = 2147483647.0;

ParamValue read_param(const Field& field) {
  const auto& value = field.raw();
  if (value.is_boolean()) return field.boolean();
  if (value.is_string()) return field.string();
  if (value.is_number_float()) return field.number(-1e300, 1e300);
  if (value.is_number()) return field.integer(INT64_MIN, INT64_MAX);
  field.expected("a number, a word, true or false");
}

/// Bare whole numbers up to this look like percentages.
constexpr std::int64_t kMaxPercent = 100;

/// "20 %", "20%", "64 entries".
std::optional<Budget> worded_budget(std::string_view text) {
  double value = 0;
  const auto [end, status] =
      number_from_chars(text.data(), text.data() + text.size(), value, /*fixed=*/true);
  if (status != std::errc{}) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  if (text == "%" && value > 0 && value <= 100) return Budget{.fraction = value / 100};
  const bool is_count = value >= 1 && value <= kMaxEntries && value == std::floor(value);
  if ((text == "entries" || text == "entry") && is_count) {
    return Budget{.entries = static_cast<std::int64_t>(value)};
  }
  return std::nullopt;
}

/// A method's name; files in it are relative to the scenario's folder.
std::string named_method(const Field& field) {
  const std::filesystem::path file{field.file()};
  std::error_code status;
  const bool is_file = std::filesystem::is_regular_file(file, status);
  const std::string name = field.string();
  try {
    return method_of_user(name, is_file ? file.parent_path() : std::filesystem::path{});
  } catch (const InputError& error) {
    field.fail(error.what());
  }
}

}  // namespace

Budget read_budget(const Field& field, SmallCounts small) {
  constexpr std::string_view kWanted =
      "a share of the prompt's cache, such as 0.2 or \"20 %\", or entries per head, such as 256 or "
      "\"64 entries\"";
  if (field.is_string()) {
    const auto budget = worded_budget(field.string());
    if (!budget) field.expected(kWanted);
    return *budget;
  }
  if (!field.is_number()) field.expected(kWanted);
  const double value = field.raw().get<double>();
  if (value > 0 && value <= 1) return {.fraction = value};
  if (!(value > 1) || value > kMaxEntries || value != std::floor(value)) field.expected(kWanted);
  const auto entries = static_cast<std::int64_t>(value);
  if (small == SmallCounts::kRefused && entries <= kMaxPercent) {
    field.fail(
        fmt::format("a bare {0} may mean {0} % or {0} entries per head; write {1:g} or "
                    "\"{0} %\" for the share, \"{0} entries\" for the count",
                    entries, value / 100));
  }
  return {.entries = entries};
}

nlohmann::ordered_json budget_value(const Budget& budget) {
  if (budget.fraction > 0) return budget.fraction;
  if (budget.entries <= kMaxPercent) return fmt::format("{} entries", budget.entries);
  return budget.entries;
}

double budget_number(const Budget& budget) {
  return budget.fraction > 0 ? budget.fraction : static_cast<double>(budget.entries);
}

std::vector<MethodSpec> read_methods(const Field& field, SmallCounts small) {
  if (field.is_string()) return {MethodSpec{named_method(field), {}, {}}};
  if (!field.is_object()) field.expected("a method's name, or an object with its name");
  MethodSpec spec{named_method(field.at("name")), {}, {}};
  for (const auto& [key, value] : field.members()) {
    if (key == "name" || key == "budget" || key == "measured_on" || value.is_null()) continue;
    spec.params[key] = read_param(value);
  }
  const auto budgets = field.find("budget");
  if (!budgets) return {spec};
  std::vector<MethodSpec> specs;
  DistinctValues<std::pair<double, std::int64_t>> distinct;
  for (const Field& budget : budgets->one_or_more()) {
    spec.budget = read_budget(budget, small);
    distinct.add({spec.budget->fraction, spec.budget->entries}, budget);
    specs.push_back(spec);
  }
  return specs;
}

std::vector<MethodSpec> read_replay_methods(const Field& methods) {
  std::vector<MethodSpec> all;
  DistinctValues distinct;
  for (const Field& item : methods.one_or_more()) {
    if (item.is_object()) {
      if (const auto trace = item.find("measured_on")) {
        trace->fail("is for points: a replay measures on its own trace");
      }
    }
    for (MethodSpec& spec : read_methods(item, SmallCounts::kAllowed)) {
      try {
        (void)takes_budget(spec.name);  // rejects an unknown name
      } catch (const InputError& error) {
        item.fail(error.what());
      }
      distinct.add(canonical_text(spec), item);
      all.push_back(std::move(spec));
    }
  }
  return all;
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
