#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/suite/loop_spec.hpp"
#include "models/units/units.hpp"

namespace kvsim::kernels {

/// Measurement of the decode loop on the first CUDA device in bf16.
struct LoopMeasurement {
  double step_us = 0;  // median over the timed steps
  double spread = 0;   // half the interquartile range over the median
  std::int32_t samples = 0;
  double launches_per_step = 0;
  Bytes total;        // device memory reported by the driver
  Bytes used_before;  // used by all processes before the loop's first allocation, with its context
  Bytes used;         // highest use, with weights, cache and the libraries' memory
  /// Longest sequence for which a decode step ran, found by growing until cudaMalloc failed,
  /// accurate to kLongestStep tokens; nullopt if a budget bounds the cache or kMaxLongest tokens
  /// fit.
  std::optional<std::int64_t> longest;
  std::int32_t tries = 0;  // number of loops created to find it
};
inline constexpr std::int64_t kLongestStep = 256;
inline constexpr std::int64_t kMaxLongest = std::int64_t{1} << 24;

/// Runs the loop's steps once to warm up and then `rounds` times, timed between CUDA events at the
/// ends of steps, without synchronization in between. Then searches the longest sequence if
/// `longest`. Errors: runtime_error without a device, memory or cuBLAS.
[[nodiscard]] LoopMeasurement measure_loop(const LoopSpec& spec, std::int64_t rounds, bool longest);

}  // namespace kvsim::kernels
