#pragma once

#include <cstdint>

namespace kvsim {

/// Mean and order statistics of a sample. Quantiles: the smallest value with at least that share of
/// the sample at or below it.
struct Distribution {
  std::int64_t n = 0;
  double mean = 0, p50 = 0, p90 = 0, p95 = 0, p99 = 0;

  /// Returns the distribution of the values multiplied by `factor`.
  [[nodiscard]] Distribution times(double factor) const {
    return {n, mean * factor, p50 * factor, p90 * factor, p95 * factor, p99 * factor};
  }
};

}  // namespace kvsim
