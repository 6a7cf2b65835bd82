#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/methods/method.hpp"

namespace kvsim {

/// A method as scenarios write it: a name, or {"name": …, "budget": …, parameters …}. A list of
/// budgets makes one method of each. `measured_on` is left to the reader of points. Only the form
/// is checked here: make_method knows what each method takes. Errors: InputError.
[[nodiscard]] std::vector<MethodSpec> read_methods(const Field& field);

/// A budget of 0 < x <= 1 is a fraction, a whole number above 1 is entries. Errors: InputError.
[[nodiscard]] Budget read_budget(const Field& field);

/// As asked for: 0.05 or 18000.
[[nodiscard]] double budget_number(const Budget& budget);

/// "zeromerge budget 18000 alpha 0.6", "h2o budget 5 %".
[[nodiscard]] std::string method_label(const MethodSpec& spec);

}  // namespace kvsim
