#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "models/methods/method.hpp"

namespace kvsim {

/// Whether bare whole numbers up to 100 are accepted as entries per head. Points of a scenario
/// reject them: prompts have thousands of tokens, and the user may mean percent. A replay accepts
/// them: it shows the entries held, and its traces may have only a few hundred tokens.
enum class SmallCounts : std::uint8_t { kRefused, kAllowed };

/// Reads a method as written in scenarios: a name, or {"name": …, "budget": …, parameters …}. A
/// list of budgets produces one method per budget. Methods in files (own_method.hpp) are loaded;
/// their paths are relative to the folder of the field's file. `measured_on` is left to the reader
/// of points. Only the form is checked here; make_method checks the parameters of each method.
/// Errors: InputError.
[[nodiscard]] std::vector<MethodSpec> read_methods(const Field& field,
                                                   SmallCounts small = SmallCounts::kRefused);

/// Reads the methods of a replay, one or a list. Errors: InputError, also for an unknown method and
/// for one that is listed twice, under any spelling.
[[nodiscard]] std::vector<MethodSpec> read_replay_methods(const Field& methods);

/// Reads a budget: 0 < x <= 1 or "20 %" is a share, a whole number above 1 or "64 entries" is a
/// count. Errors: InputError.
[[nodiscard]] Budget read_budget(const Field& field, SmallCounts small = SmallCounts::kRefused);

/// The number of a budget: 0.05 or 18000.
[[nodiscard]] double budget_number(const Budget& budget);

/// The budget as written in a scenario: 0.05, 18000 or "64 entries"; the inverse of read_budget.
[[nodiscard]] nlohmann::ordered_json budget_value(const Budget& budget);

/// "zeromerge budget 18000 alpha 0.6", "h2o budget 5 %".
[[nodiscard]] std::string method_label(const MethodSpec& spec);

}  // namespace kvsim
