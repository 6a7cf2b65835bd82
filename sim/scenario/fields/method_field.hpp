#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/methods/method.hpp"

namespace kvsim {

/// Whether bare whole numbers up to 100 are entries per head. In a scenario's points they are
/// refused: prompts have thousands of tokens, and the user may mean per cent. A replay shows what
/// it holds, and its traces may have a few hundred tokens.
enum class SmallCounts : std::uint8_t { kRefused, kAllowed };

/// A method as scenarios write it: a name, or {"name": …, "budget": …, parameters …}. A list of
/// budgets makes one method of each. `measured_on` is left to the reader of points. Only the form
/// is checked here: make_method knows what each method takes. Errors: InputError.
[[nodiscard]] std::vector<MethodSpec> read_methods(const Field& field,
                                                   SmallCounts small = SmallCounts::kRefused);

/// A budget: 0 < x <= 1 or "20 %" is a share, a whole number above 1 or "64 entries" is a count.
/// Errors: InputError.
[[nodiscard]] Budget read_budget(const Field& field, SmallCounts small = SmallCounts::kRefused);

/// The number of a budget: 0.05 or 18000.
[[nodiscard]] double budget_number(const Budget& budget);

/// The budget in a scenario: 0.05, 18000 or "64 entries"; read_budget reads it back.
[[nodiscard]] nlohmann::ordered_json budget_value(const Budget& budget);

/// "zeromerge budget 18000 alpha 0.6", "h2o budget 5 %".
[[nodiscard]] std::string method_label(const MethodSpec& spec);

}  // namespace kvsim
