#pragma once

namespace kvsim {

/// A moving average takes in one more sample: keep * average + (1 - keep) * sample.
[[nodiscard]] constexpr double moving_average(double average, double sample, double keep) {
  return keep * average + (1.0 - keep) * sample;
}

}  // namespace kvsim
