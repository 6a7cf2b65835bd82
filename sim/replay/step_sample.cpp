#include "sim/replay/step_sample.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include "models/units/check.hpp"
#include "sim/replay/sampled_mean.hpp"
#include "traces/draw.hpp"

namespace kvsim {

StepSample::StepSample(std::int64_t steps) : size_{steps}, rank_(static_cast<std::size_t>(steps)) {
  std::iota(rank_.begin(), rank_.end(), 0);
}

StepSample::StepSample(std::int64_t n, std::int64_t steps, std::uint64_t seed) : StepSample{steps} {
  if (n == 0 || n >= steps) return;
  // Errors of adjacent steps are similar: longer runs would show less per unit of time, and shorter
  // ones do not fill a tile.
  constexpr std::int64_t kLongestRun = 16, kMinRuns = 8;
  const std::int64_t length = std::clamp<std::int64_t>(n / kMinRuns, 1, kLongestRun);
  const std::int64_t runs = (steps + length - 1) / length;
  const std::int64_t drawn = n / length;
  strata_ = strata_of(static_cast<std::int32_t>(drawn));
  share_ = static_cast<double>(drawn) / static_cast<double>(runs);
  std::mt19937_64 random{seed};
  std::fill(rank_.begin(), rank_.end(), -1);
  size_ = 0;
  for (const std::int32_t run : draw_by_stratum(strata_, static_cast<std::int32_t>(runs), random)) {
    const std::int64_t first = run * steps / runs, end = (run + 1) * steps / runs;
    for (std::int64_t step = first; step < end; ++step) {
      rank_[static_cast<std::size_t>(step)] = size_++;
    }
    run_sizes_.push_back(end - first);
  }
}

std::int64_t StepSample::run_end(std::int64_t step) const {
  std::int64_t end = step + 1;
  while (end < steps() && measures(end) == measures(step)) ++end;
  return end;
}

std::optional<double> StepSample::standard_error(std::span<const double> values,
                                                 std::span<const double> weights) const {
  KVSIM_CHECK(std::ssize(values) == size_ && std::ssize(weights) == size_,
              "{} values and {} weights of {} steps", values.size(), weights.size(), size_);
  if (is_all()) return 0.0;
  SampledRatio ratio;
  std::size_t at = 0;
  for (const std::int64_t run : run_sizes_) {
    SampledRatio::Part part;
    for (std::int64_t i = 0; i < run; ++i, ++at) {
      part += {.above = values[at], .below = weights[at]};
    }
    ratio.add_layer({part});
  }
  return ratio.standard_error(share_, 1, strata_);
}

}  // namespace kvsim
