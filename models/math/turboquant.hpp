#pragma once

#include <cstdint>
#include <span>

#include "models/math/low_int.hpp"

namespace kvsim {

// TurboQuant's codes as computed by vLLM and LMDeploy.

/// Levels of a scalar quantiser of N(0, 1): vLLM's own numerical solution, or the exact Lloyd-Max
/// levels. Source: vLLM vllm/v1/attention/ops/turboquant/centroids.py.
enum class Codebook : std::uint8_t { kEngine, kExact };
/// The positive levels, ascending; the others are their negatives. bits: 3 or 4.
[[nodiscard]] std::span<const float> gaussian_levels(std::int32_t bits, Codebook codebook);

/// A key by direction and norm. `rotated`: [d], the unit vector times the normalised Hadamard
/// matrix. The code is the number of midpoints not above the value, so ties are rounded up.
[[nodiscard]] std::int32_t turboquant_code(float rotated, std::int32_t bits, Codebook codebook,
                                           std::int32_t d);
/// Returns the level of a code, divided by sqrt(d).
[[nodiscard]] float turboquant_level(std::int32_t code, std::int32_t bits, Codebook codebook,
                                     std::int32_t d);
/// Rounds key [d]. corrected: the levels are scaled to a unit vector, so that the norm is kept.
/// Source: vLLM vllm/v1/attention/ops/triton_turboquant_store.py and triton_turboquant_decode.py.
void round_turboquant_key(std::span<float> key, std::int32_t bits, bool corrected,
                          Codebook codebook);

/// Step and minimum of a value row, unrounded; the cache stores both in fp16.
struct TurboQuantValue {
  float step = 0, low = 0;
  std::int32_t levels = 15;
};
[[nodiscard]] TurboQuantValue turboquant_value(std::span<const float> row, std::int32_t bits);
[[nodiscard]] std::int32_t turboquant_value_code(float x, const TurboQuantValue& row);
void round_turboquant_value(std::span<float> row, std::int32_t bits);

/// LMDeploy's quant_policy 42: 3-bit levels and the sign of each residual for keys, 2-bit levels
/// for values, both rotated. Source: LMDeploy lmdeploy/pytorch/kernels/cuda/turbo_quant.py.
struct SignedKey {
  float norm = 0, half_step = 0;
};
/// y: [d], the rotated key. codes, signs: [d], written.
[[nodiscard]] SignedKey lmdeploy_turbo_key(std::span<const float> y, std::span<std::uint8_t> codes,
                                           std::span<std::uint8_t> signs);
void round_lmdeploy_turbo_key(std::span<float> key, Dtype dtype);
void round_lmdeploy_turbo_value(std::span<float> value, Dtype dtype);

}  // namespace kvsim
