#include "sim/batch/account/time_residual.hpp"

#include <algorithm>

namespace kvsim {

TimeResidual time_residual(const Stack& stack) {
  // Ends of log(published / predicted) over the table described in docs/published-data.md. They are
  // moved outward to account for the small number of documents and for correlated errors of rows of
  // one document (upper_limit of models/cost/kernels/spread.hpp). A test compares them with the
  // table and counts the rows of each document that are in the interval of the others.
  if (stack.growth == CacheGrowth::kPaged) {
    return {.low = 0.81,
            .high = 2.24,
            .basis =
                "whole runs: 90 % of 540 published times of engines, of ten documents, are 0.81 to "
                "2.24 times the predicted (validate published)"};
  }
  if (stack.growth == CacheGrowth::kStatic) {
    return {.low = 0.74,
            .high = 5.75,
            .basis =
                "whole runs: 90 % of 134 published times with a static cache in PyTorch, of six "
                "documents, are 0.74 to 5.75 times the predicted (validate published)"};
  }
  return {.low = 0.33,
          .high = 5.40,
          .basis =
              "whole runs: 90 % of 140 published times with a growing cache in PyTorch, of nine "
              "documents and as many hosts, are 0.33 to 5.40 times the predicted (validate "
              "published)"};
}

Interval at_least(const Interval& interval, Seconds time, const TimeResidual& residual) {
  return {.low = std::min(interval.low, time * residual.low),
          .high = std::max(interval.high, time * residual.high)};
}

std::optional<Interval> interval_of(Seconds time, std::span<const Step> some,
                                    const Roofline& roofline, const Stack& stack) {
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
                  time_residual(stack));
}

}  // namespace kvsim
