#pragma once

#include <vector>

#include "models/methods/axis_choice.hpp"

namespace kvsim {

/// Every choice of every axis; a new one is a file and a line in its axis' list.
[[nodiscard]] const std::vector<AxisChoice>& axis_choices();

/// Adds a choice from outside this library; its axis and name are literals. Call it before any
/// other use of methods, from one thread: references to the catalogue do not survive it.
/// Errors: ContractError if the axis does not exist or has a choice of that name.
void register_choice(AxisChoice choice);

}  // namespace kvsim
