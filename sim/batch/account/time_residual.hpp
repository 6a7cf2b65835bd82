#pragma once

#include <optional>
#include <span>
#include <string>

#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Measured over predicted times of whole runs: 90 % of cases in [low, high], low <= 1 <= high. In
/// addition to the kernels' errors it includes those of the stack's profile, of unknown hosts, and
/// of settings that publications do not state.
struct TimeResidual {
  double low = 1;
  double high = 1;
  std::string basis;
};
/// By how the stack's cache grows, as memory's.
[[nodiscard]] TimeResidual time_residual(const Stack& stack);

/// `interval` about `time`, no narrower than the residual's.
[[nodiscard]] Interval at_least(const Interval& interval, Seconds time,
                                const TimeResidual& residual);

/// The 90 % interval of `time`, the sum of steps of which `some` are known. Every interval of a
/// time in a result comes from here: the relative interval of the known steps' kernels, widened to
/// what published runs on such a stack say (time_residual). nullopt if a step has no interval or
/// there are none.
[[nodiscard]] std::optional<Interval> interval_of(Seconds time, std::span<const Step> some,
                                                  const Roofline& roofline, const Stack& stack);

}  // namespace kvsim
