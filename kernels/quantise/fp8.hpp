#pragma once

// The e4m3 format of 8 bits (Micikevicius et al. 2022) in kernels: 1 sign, 4 exponent (bias 7), 3
// mantissa; no infinities, the largest 448.

#include "kernels/cuda_sim/kernel.hpp"

namespace kvsim::KVSIM_EXECUTOR {

/// Exact; the two NaNs read as 480, which to_e4m3 never writes for a number.
KVSIM_DEVICE float from_e4m3(std::uint32_t code) {
  const std::uint32_t sign = (code & 0x80U) << 24U;
  const std::uint32_t exponent = (code >> 3U) & 0xFU;
  const std::uint32_t mantissa = code & 7U;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-9
    return __uint_as_float(sign | __float_as_uint(static_cast<float>(mantissa) * 0x1p-9F));
  }
  return __uint_as_float(sign | ((exponent + 120U) << 23U) | (mantissa << 20U));
}

/// The nearest, ties to even; saturates at 448. Not for NaN.
KVSIM_DEVICE std::uint32_t to_e4m3(float x) {
  const std::uint32_t bits = __float_as_uint(x);
  const std::uint32_t sign = (bits >> 24U) & 0x80U;
  const float size = fminf(__uint_as_float(bits & 0x7FFFFFFFU), 448.0F);
  if (size < 0x1p-6F) {  // below the normal numbers: steps of 2^-9, the eighth being 2^-6
    return sign | static_cast<std::uint32_t>(rintf(size * 0x1p9F));
  }
  const std::uint32_t word = __float_as_uint(size);
  const std::uint32_t rounded = word + 0x7FFFFU + ((word >> 20U) & 1U);
  return sign | ((rounded >> 20U) - (120U << 3U));
}

}  // namespace kvsim::KVSIM_EXECUTOR
