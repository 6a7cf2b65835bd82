#pragma once

// The choices of the share axis, one maker per file; the list is in choices.cpp.

#include "models/methods/axis_choice.hpp"

namespace kvsim {

AxisChoice share_minicache();

}  // namespace kvsim
