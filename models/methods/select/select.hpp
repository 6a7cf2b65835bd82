#pragma once

// The choices of the select axis, one maker a file; the list is in choices.cpp.

#include "models/methods/choices.hpp"

namespace kvsim {

AxisChoice select_all();
AxisChoice select_recent();
AxisChoice select_accumulated();
AxisChoice select_knorm();
AxisChoice select_keydiff();
AxisChoice select_expected_attention();
AxisChoice select_lagkv();
AxisChoice select_random();
AxisChoice select_last_window();
AxisChoice select_critical();
AxisChoice select_chunked();
AxisChoice select_periodic();
AxisChoice select_r_kv();
AxisChoice select_lazy_layers();
AxisChoice select_streaming_heads();
AxisChoice select_oracle_future();

/// RoPE position of a cached key: its own, or its index in the cache.
[[nodiscard]] ParamInfo positions_param();

}  // namespace kvsim
