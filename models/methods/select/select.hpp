#pragma once

// The choices of the select axis, one maker a file; the list is in choices.cpp.

#include <cstdint>
#include <vector>

#include "models/methods/choices.hpp"
#include "models/methods/logit_average.hpp"

namespace kvsim {

AxisChoice select_all();
AxisChoice select_recent();
AxisChoice select_accumulated();
AxisChoice select_logit_average();
AxisChoice select_key_runs();

/// RoPE position of a cached key: its own, or its index in the cache.
[[nodiscard]] ParamInfo positions_param();

/// Parameters of a LogitAverage, for the choices that keep one, and what they settle to where
/// `recent` last tokens are protected.
[[nodiscard]] std::vector<ParamInfo> logit_average_params();
[[nodiscard]] LogitAverageSettings settle_logit_average(Settling& settling, std::int64_t recent);

}  // namespace kvsim
