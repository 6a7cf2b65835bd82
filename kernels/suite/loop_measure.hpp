#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/suite/loop_spec.hpp"
#include "models/units/units.hpp"

namespace kvsim::kernels {

/// The decode loop on the first CUDA device, bf16.
struct LoopMeasurement {
  double step_us = 0;  // median over the timed steps
  double spread = 0;   // half the interquartile range, of the median
  std::int32_t samples = 0;
  double launches_per_step = 0;
  Bytes total;  // that the driver reports of the device
  Bytes
      used_before;  // of it, by all processes, before the loop's first allocation: with its context
  Bytes used;       // most seen, weights, cache and the libraries' memory being there
  /// Longest sequence that a decode step was run for, found by growing until cudaMalloc refused, to
  /// kLongestStep tokens; nullopt where a budget bounds the cache, or kMaxLongest tokens fitted.
  std::optional<std::int64_t> longest;
  std::int32_t tries = 0;  // loops made to find it
};
inline constexpr std::int64_t kLongestStep = 256;
inline constexpr std::int64_t kMaxLongest = std::int64_t{1} << 24;

/// Runs the loop's steps once to warm up and then `rounds` times over, timed between CUDA events at
/// the steps' ends, without waiting between them. Then looks for the longest sequence, where
/// `longest`. Errors: runtime_error where there is no device, memory or cuBLAS.
[[nodiscard]] LoopMeasurement measure_loop(const LoopSpec& spec, std::int64_t rounds, bool longest);

}  // namespace kvsim::kernels
