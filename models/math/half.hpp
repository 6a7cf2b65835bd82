#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace kvsim {

// IEEE 754 half precision and bfloat16 by bit manipulation. Rounds to nearest, ties to even.

/// Exact for every value, including subnormals, infinities and NaN.
[[nodiscard]] inline float fp16_to_float(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16U;
  const std::uint32_t exponent = (half >> 10U) & 0x1FU;
  const std::uint32_t mantissa = half & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  const std::uint32_t wide = exponent == 31 ? 255U : exponent + 112U;
  return std::bit_cast<float>(sign | (wide << 23U) | (mantissa << 13U));
}

/// Values of at least 65520 overflow to infinity; NaN stays NaN.
[[nodiscard]] inline std::uint16_t float_to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16U) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U);
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // >= 65520
  if (magnitude < 0x38800000U) {  // below 2^-14: a subnormal, in steps of 2^-24
    const float steps = std::bit_cast<float>(magnitude) * 0x1p24F;  // exact
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(std::nearbyintf(steps)));
  }
  const std::uint32_t odd = (magnitude >> 13U) & 1U;
  const std::uint32_t rounded = magnitude + 0xFFFU + odd - (112U << 23U);
  return static_cast<std::uint16_t>(sign | (rounded >> 13U));
}

/// Converts a row of halves, with the processor's instructions if the build enables them (F16C).
inline void fp16_to_floats(const std::uint16_t* from, std::size_t count, float* to) {
  std::size_t i = 0;
#ifdef __F16C__
  for (; i + 8 <= count; i += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i));
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(halves));
  }
#endif
  for (; i < count; ++i) to[i] = fp16_to_float(from[i]);
}

[[nodiscard]] inline float bf16_to_float(std::uint16_t bf16) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bf16) << 16U);
}

[[nodiscard]] inline std::uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

}  // namespace kvsim
