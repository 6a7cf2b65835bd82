#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "sim/plan/plan_result.hpp"

namespace kvsim {

/// One way to move a knob, and what it does.
struct KnobStep {
  std::string change;            // "x 1.1", "bf16 -> fp8_e4m3"
  double ratio = 0;              // 0: not a matter of percents
  std::function<double()> need;  // wanted over what there is, after it
};
/// Steps ascend: the first is small, and gives the elasticity.
struct Knob {
  std::string name;
  std::vector<KnobStep> steps;
};

/// Changes each knob on its own, the most effective ones further, until it is enough. Knobs without
/// effect are omitted; the most effective comes first.
[[nodiscard]] std::vector<KnobEffect> try_knobs(double need, const std::vector<Knob>& knobs);

/// Ratios that continuous knobs are moved by.
[[nodiscard]] std::vector<double> knob_ratios();

/// "x 1.5".
[[nodiscard]] std::string times_text(double ratio);

}  // namespace kvsim
