#pragma once

#include <vector>

#include "models/methods/axis_choice.hpp"

namespace kvsim {

/// All choices of all axes. A new choice needs a file and a line in its axis's list.
[[nodiscard]] const std::vector<AxisChoice>& axis_choices();

/// Adds a choice from outside this library; its axis and name must be literals. Call it from one
/// thread before any other use of methods, because it invalidates references to the catalogue.
/// Errors: ContractError if the axis does not exist or already has a choice with that name.
void register_choice(AxisChoice choice);

}  // namespace kvsim
