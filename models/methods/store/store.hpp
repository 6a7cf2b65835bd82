#pragma once

// The choices of the store axis, one maker a file; the list is in choices.cpp.

#include "models/methods/choices.hpp"

namespace kvsim {

AxisChoice store_recorded();
AxisChoice store_fp32();
AxisChoice store_fp16();
AxisChoice store_bf16();

}  // namespace kvsim
