#pragma once

// The choices of the prefill axis, one maker per file; the list is in choices.cpp.

#include "models/methods/axis_choice.hpp"

namespace kvsim {

AxisChoice prefill_xattention();
AxisChoice prefill_minference();
AxisChoice prefill_flexprefill();
AxisChoice prefill_skip_softmax();
AxisChoice prefill_blend();

/// Parameter `pairs`, which the cost requires and a replay measures.
[[nodiscard]] ParamInfo pairs_param();

}  // namespace kvsim
