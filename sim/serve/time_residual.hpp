#pragma once

#include <string>

#include "models/cost/roofline.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Real times of whole runs over predicted: 90 % of cases in [low, high], low <= 1 <= high. Beside
/// the kernels' errors it has those of the stack's profile, of hosts that nobody names, and of what
/// publications leave unsaid.
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

}  // namespace kvsim
