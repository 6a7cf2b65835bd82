#pragma once

// The choices of the select axis, one maker a file; the list is in choices.cpp.

#include "models/methods/choices.hpp"

namespace kvsim {

AxisChoice select_all();
AxisChoice select_recent();
AxisChoice select_accumulated();
AxisChoice select_kvzip();
AxisChoice select_kvzip_plus();
AxisChoice select_kvzap();
AxisChoice select_dms();
AxisChoice select_dmc();
AxisChoice select_pyramid_infer();

/// RoPE position of a cached key: its own, or its index in the cache.
[[nodiscard]] ParamInfo positions_param();

}  // namespace kvsim
