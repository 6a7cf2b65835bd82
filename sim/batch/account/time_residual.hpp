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
/// Depends on how the stack's cache grows, as the ends of memory do.
[[nodiscard]] TimeResidual time_residual(const Stack& stack);

/// `interval` of `time`, widened to at least the residual's interval.
[[nodiscard]] Interval at_least(const Interval& interval, Seconds time,
                                const TimeResidual& residual);

/// The 90 % interval of `time`, the sum of steps of which `some` are known. Every time interval in
/// a result comes from here: the relative interval of the known steps' kernels, widened to the
/// residual of published runs on such a stack (time_residual). nullopt if `some` is empty or one of
/// its steps has no interval.
[[nodiscard]] std::optional<Interval> interval_of(Seconds time, std::span<const Step> some,
                                                  const Roofline& roofline, const Stack& stack);

}  // namespace kvsim
