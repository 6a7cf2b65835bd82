#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// One change of a knob and its effect.
struct KnobStep {
  std::string change;            // "x 1.1", "bf16 -> fp8_e4m3"
  double ratio = 0;              // 0 if the change is not a ratio
  std::function<double()> need;  // required over available memory or time after the change
};
/// Steps ascend: the first is small and defines the elasticity.
struct Knob {
  std::string name;
  std::vector<KnobStep> steps;
};

/// Changes each knob separately. The most effective knobs are moved further, until the need is met.
/// Omits knobs without effect; the most effective comes first.
[[nodiscard]] std::vector<KnobEffect> try_knobs(double need, const std::vector<Knob>& knobs);

/// Ratios for continuous knobs.
[[nodiscard]] std::vector<double> knob_ratios();

/// Formats a ratio as "x 1.5".
[[nodiscard]] std::string times_text(double ratio);

}  // namespace kvsim
