#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "models/cost/kernels/call.hpp"

namespace kvsim::tiles {

/// Output tile of one thread block, and how far it walks the inner dimension in one step.
struct Tile {
  double m = 128;
  double n = 128;
};
inline constexpr double kStep = 64;

/// Shared by forms of matrix products: rates of one multiprocessor (SM), per µs.
struct Machine {
  double sms = 1;
  double flops = 1;      // arithmetic of an SM
  double fp32 = 1;       // outside the tensor cores, of an SM
  double bandwidth = 1;  // HBM, bytes of the whole GPU
};
inline Machine machine_of(const KernelGpu& gpu, const KernelFormat& format) {
  return {.sms = gpu.sms,
          .flops = gpu.peak(format.compute) * 1e-6 / gpu.sms,
          .fp32 = gpu.fp32_flops * 1e-6 / gpu.sms,
          .bandwidth = gpu.bandwidth * 1e-6};
}

/// Bytes of an activation as the tensor cores take it, after quantisation where there is one.
inline double operand_bytes(const KernelFormat& format) {
  return format.quantises ? bits_of(format.compute) / 8.0 : format.operand_bytes;
}

/// Least whole number not below `x`, 0 <= x < 2^62: without the call that std::ceil is where the
/// machine's rounding instruction cannot be assumed.
inline double whole(double x) {
  const auto down = static_cast<double>(static_cast<std::int64_t>(x));
  return down < x ? down + 1 : down;
}

/// Larger of two times that overlap, rounded off where they are near each other: the p-norm.
inline double overlap(double a, double b, double p) {
  const double high = std::max(a, b);
  const double low = std::min(a, b);
  if (low <= 1e-4 * high) return high;
  return high * std::pow(1 + std::pow(low / high, p), 1 / p);
}

/// Turns of the SMs that `blocks` thread blocks take. `share` of the last, unfilled turn is saved:
/// blocks of one SM run side by side and the next start early.
inline double waves(double blocks, double sms, double share) {
  const double even = blocks / sms;
  return std::max(1.0, whole(even) * (1 - share) + even * share);
}

}  // namespace kvsim::tiles
