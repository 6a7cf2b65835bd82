#pragma once

#include <cstdint>
#include <span>

#include "models/math/quantise.hpp"

namespace kvsim {

// Four-bit and eight-bit floating-point codes, and the Hadamard rotation, as used by the engines'
// formats of 4 to 8 bits.

/// Magnitudes of E2M1 by code; codes from 8 are negative.
inline constexpr float kE2m1[8] = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6};
/// Rounding of a value halfway between two levels: to the even code, to the larger magnitude, or to
/// the lower level (of larger magnitude if negative).
enum class E2m1Tie : std::uint8_t { kEven, kAway, kLower };
/// The code of the nearest magnitude in [0, 6], with the sign of `x` in bit 3. A negative value
/// that rounds to zero keeps its sign, as a saturating cast does.
[[nodiscard]] std::uint8_t e2m1_code(float x, E2m1Tie tie);
[[nodiscard]] inline float e2m1_value(std::uint8_t code) {
  return (code & 8U) != 0 ? -kE2m1[code & 7U] : kE2m1[code];
}

/// Returns the byte of round_to_fp8(x, Fp8::kE4m3), or its value. Throws ContractError if x is NaN.
[[nodiscard]] std::uint8_t e4m3_byte(float x);
[[nodiscard]] float e4m3_value(std::uint8_t byte);

/// Multiplies row [d] by the Sylvester Hadamard matrix without normalisation: applied twice, the
/// result is d times the row. Throws ContractError if d is not a power of two.
void hadamard(std::span<float> row);

/// NVFP4's choice of the scale of 16 channels: the largest magnitude maps to 6, or to 6 or 4,
/// whichever has the smaller squared error.
enum class Nvfp4Search : std::uint8_t { kMax6, kFourOverSix };
struct Nvfp4Group {
  std::uint8_t scale = 0;  // E4M3
  std::uint8_t codes[16] = {};
};
/// values: [16]. global: the fp32 scale of the layer, > 0.
/// Source: vLLM csrc/libtorch_stable/nvfp4_kv_cache_kernels.cu; 4over6: vLLM pull request 45187.
[[nodiscard]] Nvfp4Group nvfp4_group(std::span<const float> values, float global,
                                     Nvfp4Search search);
[[nodiscard]] inline float nvfp4_value(const Nvfp4Group& group, std::size_t i, float global) {
  return e2m1_value(group.codes[i]) * e4m3_value(group.scale) * global;
}

/// E2M1 codes with a power-of-two scale.
struct PowerGroup {
  std::int32_t exponent = 0;
  bool is_zero = false;  // stored as byte 0
  [[nodiscard]] std::uint8_t byte() const {
    return is_zero ? std::uint8_t{0} : static_cast<std::uint8_t>(exponent + 127);
  }
};
/// SGLang's fp4 format: the least exponent under which no value exceeds 6.
/// Source: SGLang python/sglang/srt/layers/quantization/kvfp4_tensor.py.
[[nodiscard]] PowerGroup mx16_group(std::span<const float> values);
/// UltraQuant: 2^e nearest to 0.156 of the largest magnitude, so that some values exceed 6 and
/// saturate. Source: vLLM vllm/v1/attention/ops/ultraquant/format.py.
[[nodiscard]] PowerGroup ultraquant_group(std::span<const float> values);

}  // namespace kvsim
