#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/methods/method.hpp"

namespace kvsim {

/// A published method: one choice an axis, and the parameters it sets otherwise than the choices
/// do.
struct Preset {
  MethodInfo info;
  Params defaults;
  double default_budget = 0;  // of the prompt, where neither a budget nor sizes are given; 0: none
};
[[nodiscard]] const std::vector<Preset>& presets();

}  // namespace kvsim
