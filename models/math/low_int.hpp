#pragma once

#include <cstdint>
#include <span>

#include "models/math/low_float.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

// Integer codes as computed by engines, with the bits that their kernels store.

/// Returns `x` rounded to fp16 or bf16; unchanged in any other format.
[[nodiscard]] float as_stored(float x, Dtype dtype);

/// vLLM's int8 per token-head: max |row| / 127, at least 1e-6, in fp32.
/// Source: vLLM pull request 38378; rounding: pull request 45361.
[[nodiscard]] float int8_token_step(std::span<const float> row);
/// Returns a code in [-128, 127].
[[nodiscard]] std::int32_t int8_token_code(float x, float step, bool truncates);

/// vLLM's int4 per token-head, for a rotated row. The lowest four bits of the stored step are the
/// zero point. Source: vLLM vllm/v1/attention/ops/int4_per_token_head.py.
struct Int4Rotated {
  float step = 0;
  std::int32_t zero = 0;  // 0 to 15
  [[nodiscard]] std::uint32_t word() const;
  /// The step without its lowest four bits.
  [[nodiscard]] float stored() const;
};
[[nodiscard]] Int4Rotated int4_rotated_step(std::span<const float> rotated);
[[nodiscard]] std::int32_t int4_rotated_code(float x, const Int4Rotated& step);

/// LMDeploy's step and minimum (TurboMind) or zero point (PyTorch engine) of one row, in the
/// model's type. Source: LMDeploy src/turbomind/kernels/attention/quantization.h and
/// pytorch/kernels/cuda/fill_kv_cache.py.
struct LmdeployRow {
  float step = 0, zero = 0;
  std::int32_t levels = 255;
  bool pytorch = false;
  Dtype dtype = Dtype::kFp16;
};
/// levels: 2^bits - 1.
[[nodiscard]] LmdeployRow lmdeploy_row(std::span<const float> row, std::int32_t levels,
                                       bool pytorch, Dtype dtype);
/// Returns 0 for a constant row.
[[nodiscard]] std::int32_t lmdeploy_code(float x, const LmdeployRow& row);
[[nodiscard]] float lmdeploy_value(std::int32_t code, const LmdeployRow& row);

/// OSCAR's two bits of a rotated row: step and zero point as computed and as stored.
/// Source: OSCAR QuantKernel/oscar_rotation_clip_int2_kv.py; vLLM
/// vllm/v1/attention/ops/oscar_ops.py.
struct OscarRow {
  float step = 0, zero = 0;
  float bound = 0;  // elements are clamped to [-bound, bound] first
  float stored_step = 0, stored_zero = 0;
  bool by_deviation = false;  // codes by bounds of the deviation (Lloyd-Max)
  float mean = 0, deviation = 0;
};
/// clip: the bound is the int(clip d)-th smallest magnitude, counted from 0; 0: no bound. `stored`:
/// the type of step and zero point. `lloyd_max`: uses the levels of a normal distribution instead
/// of equal steps between minimum and maximum; they are stored as equal steps, as in the released
/// code.
[[nodiscard]] OscarRow oscar_row(std::span<const float> rotated, double clip, Dtype stored,
                                 bool lloyd_max);
/// Returns a code in [0, 3].
[[nodiscard]] std::int32_t oscar_code(float x, const OscarRow& row);
[[nodiscard]] float oscar_value(std::int32_t code, const OscarRow& row);

/// QuaRot's step and zero point of one rotated row, in fp32. The range contains 0; a row of zeros
/// has the range [-1, 1]. Source: QuaRot fake_quant/quant_utils.py, asymmetric, per token.
struct QuarotRow {
  float step = 0, zero = 0;
  std::int32_t levels = 15;
};
/// levels: 2^bits - 1; clip: share of the range that codes cover, in (0, 1].
[[nodiscard]] QuarotRow quarot_row(std::span<const float> rotated, std::int32_t levels, float clip);
/// Returns a code in [0, levels].
[[nodiscard]] std::int32_t quarot_code(float x, const QuarotRow& row);
[[nodiscard]] float quarot_value(std::int32_t code, const QuarotRow& row);

}  // namespace kvsim
