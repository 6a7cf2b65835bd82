#pragma once

// The choices of the merge axis, one maker per file; the list is in choices.cpp.

#include "models/methods/axis_choice.hpp"

namespace kvsim {

AxisChoice merge_drop();
AxisChoice merge_residual();
AxisChoice merge_zip();
AxisChoice merge_cosine_ema();
AxisChoice merge_value_spread();
AxisChoice merge_value_blend();
AxisChoice merge_gaussian();
AxisChoice merge_low_rank();
AxisChoice merge_accumulate();

}  // namespace kvsim
