#pragma once

// The choices of the budget axis, one maker per file; the list is in choices.cpp.

#include "models/methods/axis_choice.hpp"

namespace kvsim {

AxisChoice budget_none();
AxisChoice budget_uniform();
AxisChoice budget_pyramid();
AxisChoice budget_cosine();
AxisChoice budget_first_full();
AxisChoice budget_variance();
AxisChoice budget_ada();
AxisChoice budget_lazy();
AxisChoice budget_duo();
AxisChoice budget_global();
AxisChoice budget_threshold();
AxisChoice budget_nested();

}  // namespace kvsim
