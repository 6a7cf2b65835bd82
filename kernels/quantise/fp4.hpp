#pragma once

// The e2m1 format of 4 bits in kernels: 1 sign, 2 exponent, 1 mantissa; magnitudes 0, 0.5, 1, 1.5,
// 2, 3, 4, 6.

#include "kernels/cuda_sim/kernel.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Exact: the three low bits are the exponent and mantissa of a float 2^126 times smaller.
KVSIM_DEVICE float from_e2m1(std::uint32_t code) {
  return __uint_as_float(((code & 8U) << 28U) | ((code & 7U) << 22U)) * 0x1p126F;
}

/// Rounds to nearest, ties to the even code; saturates at 6. The sign of a zero is kept.
KVSIM_DEVICE std::uint32_t to_e2m1(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  const float size = __uint_as_float(bits & 0x7FFFFFFFU);
  const int code = (size > 0.25F ? 1 : 0) + (size >= 0.75F ? 1 : 0) + (size > 1.25F ? 1 : 0) +
                   (size >= 1.75F ? 1 : 0) + (size > 2.5F ? 1 : 0) + (size >= 3.5F ? 1 : 0) +
                   (size > 5.0F ? 1 : 0);
  return ((bits >> 28U) & 8U) | static_cast<std::uint32_t>(code);
}

}  // namespace kvsim::KVSIM_EXECUTOR
