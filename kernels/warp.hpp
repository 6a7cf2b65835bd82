#pragma once

// Helpers within a warp or a block, shared by several kernels.

#include "kernels/cuda_sim/kernel.hpp"

namespace kvsim::KVSIM_EXECUTOR {

inline constexpr std::uint32_t kAllLanes = 0xFFFFFFFFU;

KVSIM_DEVICE std::int64_t smaller(std::int64_t a, std::int64_t b) { return b < a ? b : a; }

/// Returns the sum over groups of `width` lanes (a power of two) in every lane, bitwise equal in
/// each.
KVSIM_DEVICE float warp_sum(float x, int width = 32) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(kAllLanes, x, distance);
  }
  return x;
}
KVSIM_DEVICE float warp_max(float x, int width = 32) {
  for (int distance = width / 2; distance > 0; distance /= 2) {
    x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, distance));
  }
  return x;
}
KVSIM_DEVICE std::uint64_t warp_min(std::uint64_t x) {
  for (int distance = 16; distance > 0; distance /= 2) {
    const std::uint64_t other = __shfl_xor_sync(kAllLanes, x, distance);
    x = other < x ? other : x;
  }
  return x;
}

/// Maps a float to a word that preserves its order; -0 and 0 map to the same word. Not for NaN.
KVSIM_DEVICE std::uint32_t ordered_bits(float x) {
  const std::uint32_t bits = x == 0.0F ? 0U : __float_as_uint(x);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}

/// The running thread's index in a one-dimensional grid, and the number of threads.
KVSIM_DEVICE std::int64_t grid_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
KVSIM_DEVICE std::int64_t grid_threads() {
  return static_cast<std::int64_t>(gridDim.x) * blockDim.x;
}

}  // namespace kvsim::KVSIM_EXECUTOR
