#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvsim {

/// Decode steps whose outputs are compared with the full cache: all, or a random sample of runs of
/// adjacent steps, which share tiles of attention. Sizes and traffic cover all steps.
class StepSample {
 public:
  /// Samples all of `steps`.
  explicit StepSample(std::int64_t steps);
  /// Draws at most `n` of `steps` with `seed` from strata of runs of equal probability; takes all
  /// steps if `n` is 0 or at least `steps`.
  StepSample(std::int64_t n, std::int64_t steps, std::uint64_t seed);

  [[nodiscard]] bool is_all() const { return size() == steps(); }
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(rank_.size()); }
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Returns the number of measured steps before `step` if it is measured; otherwise -1.
  [[nodiscard]] std::int64_t rank(std::int64_t step) const {
    return rank_[static_cast<std::size_t>(step)];
  }
  [[nodiscard]] bool measures(std::int64_t step) const { return rank(step) >= 0; }
  /// Returns the first step after `step` that differs from it in being measured, or the end.
  [[nodiscard]] std::int64_t run_end(std::int64_t step) const;
  /// Returns the standard error of sum(values) / sum(weights), both [size()], over the drawn runs;
  /// 0 if all steps are measured, nullopt if the sample has no spread.
  [[nodiscard]] std::optional<double> standard_error(std::span<const double> values,
                                                     std::span<const double> weights) const;

 private:
  std::int64_t size_ = 0;
  std::vector<std::int64_t> rank_;         // [steps]
  std::vector<std::int64_t> run_sizes_{};  // of the drawn runs, in order
  std::vector<std::int32_t> strata_{};     // drawn runs per stratum
  double share_ = 1;                       // sampled share of the runs
};

}  // namespace kvsim
