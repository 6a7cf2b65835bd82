#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/rates/roofline.hpp"
#include "models/cost/residuals/residuals.hpp"
#include "models/cost/step.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// The part of a static run that a time belongs to; each has its own residual classes.
enum class RunPhase : std::uint8_t { kPrefill, kDecode };
/// ResidualClass::metric: "prefill" or "decode".
[[nodiscard]] std::string_view residual_metric(RunPhase phase);
/// Returns ResidualClass::path of static runs: how the stack's cache grows, the operation on the
/// cache, the stack. `method`: its name, "full" for none; `narrow`: whether the cache's format has
/// less than 16 bits.
[[nodiscard]] std::vector<std::string> static_residual_path(const Stack& stack,
                                                            std::string_view method, bool narrow);

/// Measured over predicted times of whole runs: [low, high] covers 90 % of cases, low <= 1 <= high.
/// In addition to the kernels' errors it includes those of the stack's profile, of unknown hosts,
/// and of settings that publications do not state.
struct TimeResidual {
  double low = 1;
  double high = 1;
  std::string basis;  // the class in words
};
/// Returns the class of such runs in models/cost/residuals/static.json.
[[nodiscard]] TimeResidual time_residual(const CostInput& in, RunPhase phase);

/// `interval` of `time`, widened to at least the residual's interval.
[[nodiscard]] Interval at_least(const Interval& interval, Seconds time,
                                const TimeResidual& residual);

/// The 90 % interval of `time`, the sum of steps of which `some` are known. Every time interval in
/// a result of a static run comes from here: the relative interval of the known steps' kernels,
/// widened to the residual of published runs like it (time_residual). nullopt if `some` is empty or
/// one of its steps has no interval.
[[nodiscard]] std::optional<Interval> interval_of(Seconds time, std::span<const Step> some,
                                                  const Roofline& roofline, const CostInput& in,
                                                  RunPhase phase);

}  // namespace kvsim
