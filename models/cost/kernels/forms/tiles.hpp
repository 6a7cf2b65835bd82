#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "models/cost/kernels/call.hpp"

namespace kvsim::tiles {

/// Output tile of one thread block, and its step along the inner dimension.
struct Tile {
  double m = 128;
  double n = 128;
};
inline constexpr double kStep = 64;

/// Rates of one multiprocessor (SM) per µs, shared by forms of matrix products.
struct Machine {
  double sms = 1;
  double flops = 1;      // arithmetic per SM
  double fp32 = 1;       // outside the tensor cores, per SM
  double bandwidth = 1;  // HBM, bytes of the whole GPU
};
inline Machine machine_of(const KernelGpu& gpu, const KernelFormat& format) {
  return {.sms = gpu.sms,
          .flops = gpu.peak(format.compute) * 1e-6 / gpu.sms,
          .fp32 = gpu.fp32_flops * 1e-6 / gpu.sms,
          .bandwidth = gpu.bandwidth * 1e-6};
}

/// Returns the bytes of an activation as read by the tensor cores, after any quantisation.
inline double operand_bytes(const KernelFormat& format) {
  return format.quantises ? bits_of(format.compute) / 8.0 : format.operand_bytes;
}

/// Returns the smallest integer not below `x`, 0 <= x < 2^62. Avoids the call that std::ceil
/// compiles to on targets without a guaranteed rounding instruction.
inline double whole(double x) {
  const auto down = static_cast<double>(static_cast<std::int64_t>(x));
  return down < x ? down + 1 : down;
}

/// Returns the larger of two overlapping times, smoothed where they are similar: the p-norm.
inline double overlap(double a, double b, double p) {
  const double high = std::max(a, b);
  const double low = std::min(a, b);
  if (low <= 1e-4 * high) return high;
  return high * std::pow(1 + std::pow(low / high, p), 1 / p);
}

/// Returns the number of waves of `blocks` thread blocks. `share` of the last, partial wave is
/// saved: blocks share an SM, and those of the next wave start early.
inline double waves(double blocks, double sms, double share) {
  const double even = blocks / sms;
  return std::max(1.0, whole(even) * (1 - share) + even * share);
}

}  // namespace kvsim::tiles
