#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvsim {

/// Decode steps whose outputs are compared with the full cache: all, or a random sample in runs of
/// neighbours, which share tiles of attention. Sizes and traffic are those of all steps.
class StepSample {
 public:
  /// All of `steps`.
  explicit StepSample(std::int64_t steps);
  /// At most `n` of `steps`, drawn by `seed` from strata of runs, each as likely as another; all if
  /// `n` is 0 or no fewer.
  StepSample(std::int64_t n, std::int64_t steps, std::uint64_t seed);

  [[nodiscard]] bool is_all() const { return size() == steps(); }
  [[nodiscard]] std::int64_t steps() const { return static_cast<std::int64_t>(rank_.size()); }
  [[nodiscard]] std::int64_t size() const { return size_; }
  /// Measured steps before `step`, if it is one of them; else -1.
  [[nodiscard]] std::int64_t rank(std::int64_t step) const {
    return rank_[static_cast<std::size_t>(step)];
  }
  [[nodiscard]] bool measures(std::int64_t step) const { return rank(step) >= 0; }
  /// The first step after `step` that is not measured as it is, or the end.
  [[nodiscard]] std::int64_t run_end(std::int64_t step) const;
  /// Standard error of sum(values) / sum(weights), both [size()], over the runs that were drawn; 0
  /// of all steps, nullopt where a sample shows no spread.
  [[nodiscard]] std::optional<double> standard_error(std::span<const double> values,
                                                     std::span<const double> weights) const;

 private:
  std::int64_t size_ = 0;
  std::vector<std::int64_t> rank_;         // [steps]
  std::vector<std::int64_t> run_sizes_{};  // of the runs drawn, in order
  std::vector<std::int32_t> strata_{};     // runs drawn from each stratum
  double share_ = 1;                       // of the runs
};

}  // namespace kvsim
