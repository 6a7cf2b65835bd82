#pragma once

// The choices of the budget axis, one maker a file; the list is in choices.cpp.

#include "models/methods/choices.hpp"

namespace kvsim {

AxisChoice budget_none();
AxisChoice budget_uniform();
AxisChoice budget_global();
AxisChoice budget_threshold();
AxisChoice budget_nested();

}  // namespace kvsim
