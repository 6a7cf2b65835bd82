#pragma once

// The choices of the tier axis, one maker per file; the list is in choices.cpp.

#include "models/methods/axis_choice.hpp"

namespace kvsim {

AxisChoice tier_nvfp4();
AxisChoice tier_cachegen();
AxisChoice tier_kvtc();
AxisChoice tier_ans();

/// Parameter `returned` of every codec.
[[nodiscard]] ParamInfo returned_param();
/// Reads `returned`. Errors: refuses caches that drop entries or share them between layers, because
/// no engine encodes their pages, and stores other than 16-bit rows and FP8 with a scale of 1.
[[nodiscard]] double resolve_returned(MethodResolver& resolver);

}  // namespace kvsim
