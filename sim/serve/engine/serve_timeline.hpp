#pragma once

// Internal to sim/serve: a timeline of bounded length.

#include <cstdint>
#include <vector>

#include "sim/serve/serve_result.hpp"

namespace kvsim {

/// Keeps every n-th sample, n doubling whenever there are more than `max_samples`, plus the first,
/// the last and the one with the highest memory use. Tokens are cumulative and converted to
/// differences at the end.
class ServeTimeline {
 public:
  explicit ServeTimeline(std::size_t max_samples) : max_samples_{max_samples} {}

  /// Returns whether the next sample is needed; `taken`: units taken from the pool.
  [[nodiscard]] bool wants(std::int64_t taken) {
    const bool keeps = seen_++ % stride_ == 0;
    return keeps || taken > peak_taken_;
  }
  void add(const ServeSample& sample, std::int64_t taken);
  void add_iteration(const ServeIteration& iteration);
  /// Adds the last sample of the run.
  void finish(const ServeSample& last);
  [[nodiscard]] std::vector<ServeSample> samples() const;
  [[nodiscard]] const std::vector<ServeIteration>& iterations() const { return iterations_; }

 private:
  std::size_t max_samples_;
  std::int64_t seen_ = 0, stride_ = 1;
  std::int64_t peak_taken_ = -1;
  ServeSample peak_{}, last_{};
  bool finished_ = false;
  std::vector<ServeSample> kept_;
  std::vector<ServeIteration> iterations_;
};

}  // namespace kvsim
