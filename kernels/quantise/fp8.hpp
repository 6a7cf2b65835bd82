#pragma once

// The e4m3 format of 8 bits (Micikevicius et al. 2022) in kernels: 1 sign, 4 exponent (bias 7), 3
// mantissa; no infinities, largest value 448.

#include "kernels/cuda_sim/kernel.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Exact: the seven low bits are the exponent and mantissa of a float 2^120 times smaller. The two
/// NaNs read as 480, which to_e4m3 never writes for a number.
KVSIM_DEVICE float from_e4m3(std::uint32_t code) {
  return __uint_as_float(((code & 0x80U) << 24U) | ((code & 0x7FU) << 20U)) * 0x1p120F;
}

/// Rounds to nearest, ties to even; saturates at 448. Not for NaN.
KVSIM_DEVICE std::uint32_t to_e4m3(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  const std::uint32_t sign = (bits >> 24U) & 0x80U;
  const float size = fminf(__uint_as_float(bits & 0x7FFFFFFFU), 448.0F);
  if (size < 0x1p-6F) {  // subnormal: steps of 2^-9, the eighth is 2^-6
    return sign | static_cast<std::uint32_t>(rintf(size * 0x1p9F));
  }
  const std::uint32_t word = __float_as_uint(size);
  const std::uint32_t rounded = word + 0x7FFFFU + ((word >> 20U) & 1U);
  return sign | ((rounded >> 20U) - (120U << 3U));
}

}  // namespace kvsim::KVSIM_EXECUTOR
