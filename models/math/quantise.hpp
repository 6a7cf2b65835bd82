#pragma once

#include <cstdint>
#include <span>

namespace kvsim {

// Rounding of rows to low-bit formats. Codes are rounded to nearest, ties to even. Steps and zeros
// are stored in fp16, and codes are computed from the stored values, so a decoded code equals the
// value in a real cache. Functions on rows write back the dequantised values.

/// Step and minimum of a group: x ~ zero + step * code, code in [0, levels].
struct AsymmetricGroup {
  float step = 0;
  float zero = 0;
};
/// levels: 2^bits - 1. zero = fp16(low), step = fp16((high - low) / levels).
/// Source: KIVI (Liu et al. 2024), eq. (1).
[[nodiscard]] AsymmetricGroup asymmetric_group(float low, float high, std::int32_t levels);
/// Clamped to [0, levels]; 0 if the step is 0.
[[nodiscard]] std::int32_t asymmetric_code(float x, AsymmetricGroup group, std::int32_t levels);
[[nodiscard]] float asymmetric_value(std::int32_t code, AsymmetricGroup group);

/// Rounds row [d] in groups of `group` neighbours (the last may be shorter), each with step and
/// zero.
/// Throws ContractError if group or levels < 1.
void round_asymmetric_row(std::span<float> row, std::int32_t group, std::int32_t levels);
/// Rounds rows [n, d] row-major: every column in groups of `group` consecutive rows (the last may
/// be shorter). Throws ContractError if the span is not whole rows, or group or levels < 1.
void round_asymmetric_columns(std::span<float> rows, std::int32_t d, std::int32_t group,
                              std::int32_t levels);

/// Step of symmetric INT8: fp16(max |x| / 127).
[[nodiscard]] float int8_step(std::span<const float> row);
/// Clamped to [-127, 127]; 0 if the step is 0.
[[nodiscard]] std::int32_t int8_code(float x, float step);
void round_int8_row(std::span<float> row);

/// The 8-bit floating-point formats of the OCP specification (Micikevicius et al. 2022).
enum class Fp8 : std::uint8_t { kE4m3, kE5m2 };
/// 448 for e4m3, 57344 for e5m2.
[[nodiscard]] float fp8_max(Fp8 format);
/// Returns the nearest value of the format, ties to even; saturates at fp8_max; NaN stays NaN. The
/// error is at most 2^-4 (e4m3) or 2^-3 (e5m2) of x in the normal range.
[[nodiscard]] float round_to_fp8(float x, Fp8 format);
/// Rounds row to scale * fp8(row / scale); unchanged if the scale is 0.
void round_fp8_row(std::span<float> row, float scale, Fp8 format);

/// max |x|; 0 if empty.
[[nodiscard]] float abs_max(std::span<const float> values);

/// SmoothQuant's channel scales: max|K_j|^a / max|Q_j|^(1-a); 1 if either maximum is 0.
/// Source: Xiao et al. 2023, eq. (4), with keys instead of weights.
/// key_max, query_max, out: [d]. Throws ContractError if lengths disagree.
void smoothing_scales(std::span<const float> key_max, std::span<const float> query_max, double a,
                      std::span<float> out);

}  // namespace kvsim
