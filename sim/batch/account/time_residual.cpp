#include "sim/batch/account/time_residual.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "models/methods/method.hpp"
#include "models/units/check.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

std::string_view residual_metric(RunPhase phase) {
  return phase == RunPhase::kPrefill ? "prefill" : "decode";
}

std::vector<std::string> static_residual_path(const Stack& stack, std::string_view method,
                                              bool narrow) {
  const bool is_engine = stack.growth == CacheGrowth::kPaged;
  return {is_engine                              ? "engine"
          : stack.growth == CacheGrowth::kStatic ? "static cache in PyTorch"
                                                 : "growing cache in PyTorch",
          method != "full" ? is_engine ? "method in an engine" : "method in research code"
          : narrow         ? "full cache in fewer bits"
                           : "full cache",
          stack.name};
}

TimeResidual time_residual(const CostInput& in, RunPhase phase) {
  constexpr std::int32_t kSixteenBits = 16;
  std::vector<std::string> path =
      static_residual_path(*in.stack, in.method != nullptr ? in.method->name() : "full",
                           bits_of(in.kv_dtype) < kSixteenBits);
  path.emplace_back(residual_metric(phase));
  const ResidualClass* of = ResidualModel::static_runs().find(residual_metric(phase), path);
  KVSIM_CHECK(of != nullptr, "no residuals of {}", residual_metric(phase));
  const auto [low, high] = residual_ends(*of, 1, Response::linear(1));
  return {.low = low,
          .high = high,
          .basis = fmt::format("whole runs: 90 % of published times are {:.2f} to {:.2f} times the "
                               "predicted ({})",
                               low, high, of->words())};
}

Interval at_least(const Interval& interval, Seconds time, const TimeResidual& residual) {
  return {.low = std::min(interval.low, time * residual.low),
          .high = std::max(interval.high, time * residual.high)};
}

std::optional<Interval> interval_of(Seconds time, std::span<const Step> some,
                                    const Roofline& roofline, const CostInput& in, RunPhase phase) {
  if (some.empty()) return std::nullopt;
  double known = 0, low = 0, high = 0;
  for (const Step& step : some) {
    const auto interval = time_interval(step, roofline);
    if (!interval) return std::nullopt;
    known += evaluate(step, roofline).time.count();
    low += interval->low.count();
    high += interval->high.count();
  }
  if (known <= 0) return std::nullopt;
  return at_least({.low = time * (low / known), .high = time * (high / known)}, time,
                  time_residual(in, phase));
}

}  // namespace kvsim
