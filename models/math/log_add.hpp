#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsim {

inline constexpr double kLogOfZero = -std::numeric_limits<double>::infinity();

/// Returns ln(e^a + e^b), where e^a and e^b may exceed the range of a double; kLogOfZero represents
/// ln 0.
[[nodiscard]] inline double log_add(double a, double b) {
  const double low = std::min(a, b);
  const double high = std::max(a, b);
  return low == kLogOfZero ? high : high + std::log1p(std::exp(low - high));
}

}  // namespace kvsim
