#include "models/math/low_int.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "models/math/half.hpp"

namespace kvsim {

float as_stored(float x, Dtype dtype) {
  if (dtype == Dtype::kFp16) return fp16_to_float(float_to_fp16(x));
  if (dtype == Dtype::kBf16) return bf16_to_float(float_to_bf16(x));
  return x;
}

float int8_token_step(std::span<const float> row) { return std::max(abs_max(row) / 127.0F, 1e-6F); }

std::int32_t int8_token_code(float x, float step, bool truncates) {
  const float scaled = std::clamp(x * (1 / step), -128.0F, 127.0F);
  return static_cast<std::int32_t>(truncates ? std::trunc(scaled) : std::nearbyint(scaled));
}

std::uint32_t Int4Rotated::word() const {
  return (std::bit_cast<std::uint32_t>(step) & ~15U) | static_cast<std::uint32_t>(zero);
}

float Int4Rotated::stored() const {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(step) & ~15U);
}

Int4Rotated int4_rotated_step(std::span<const float> rotated) {
  const auto [low, high] = std::minmax_element(rotated.begin(), rotated.end());
  Int4Rotated out;
  out.step = std::max((*high - *low) / 15.0F, 1e-6F);
  out.zero = static_cast<std::int32_t>(std::clamp(std::round(-*low / out.step), 0.0F, 15.0F));
  return out;
}

std::int32_t int4_rotated_code(float x, const Int4Rotated& step) {
  const float code = std::round(x * (1 / step.step) + static_cast<float>(step.zero));
  return static_cast<std::int32_t>(std::clamp(code, 0.0F, 15.0F));
}

LmdeployRow lmdeploy_row(std::span<const float> row, std::int32_t levels, bool pytorch,
                         Dtype dtype) {
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  LmdeployRow out{.step = 0, .zero = *low, .levels = levels, .pytorch = pytorch, .dtype = dtype};
  out.step = as_stored((*high - *low) / static_cast<float>(levels), dtype);
  if (pytorch && out.step > 0) out.zero = as_stored(-*low / out.step, dtype);
  return out;
}

std::int32_t lmdeploy_code(float x, const LmdeployRow& row) {
  if (row.step == 0) return 0;
  if (row.pytorch) {
    // Without a clamp, rounding of the zero point may give a code above the levels.
    return static_cast<std::int32_t>(std::floor(x / row.step + row.zero + 0.5F));
  }
  const float above = as_stored(x - row.zero, row.dtype);
  const float scaled = as_stored(above * as_stored(1 / row.step, row.dtype), row.dtype);
  // The inverse of a small step is infinite in fp16; the GPU's saturating conversion maps NaN to 0.
  if (std::isnan(scaled)) return 0;
  return static_cast<std::int32_t>(
      std::clamp(std::nearbyint(scaled), 0.0F, static_cast<float>(row.levels)));
}

float lmdeploy_value(std::int32_t code, const LmdeployRow& row) {
  const auto number = static_cast<float>(code);
  if (row.step == 0) return row.zero;
  if (row.pytorch) return as_stored((number - row.zero) * row.step, row.dtype);
  return as_stored(as_stored(number * row.step, row.dtype) + row.zero, row.dtype);
}

OscarRow oscar_row(std::span<const float> rotated, double clip, Dtype stored, bool lloyd_max) {
  constexpr float kLevels = 3;
  constexpr float kMinRange = 1e-8F;
  const std::size_t d = rotated.size();
  OscarRow row;
  row.bound = std::numeric_limits<float>::infinity();
  if (clip > 0) {
    std::vector<float> sizes;
    for (const float x : rotated) sizes.push_back(std::abs(x));
    const std::size_t at = std::min(static_cast<std::size_t>(clip * static_cast<double>(d)), d - 1);
    std::nth_element(sizes.begin(), sizes.begin() + static_cast<std::ptrdiff_t>(at), sizes.end());
    row.bound = sizes[at];
  }
  const auto clamped = [&row](float x) { return std::clamp(x, -row.bound, row.bound); };
  if (lloyd_max) {
    // As released: levels of a normal distribution, and a range wider by a factor of 1.16.
    constexpr float kEnd = 1.5095585584640503F;
    constexpr float kWider = 1.16F;
    double sum = 0;
    for (const float x : rotated) sum += static_cast<double>(clamped(x));
    row.mean = static_cast<float>(sum / static_cast<double>(d));
    double squares = 0;
    for (const float x : rotated) {
      const auto off = static_cast<double>(clamped(x) - row.mean);
      squares += off * off;
    }
    row.deviation = std::sqrt(static_cast<float>(squares / static_cast<double>(d)) + kMinRange);
    row.by_deviation = true;
    row.step = 2 * kEnd / kLevels * kWider * row.deviation;
    row.zero = kEnd / (2 * kEnd / kLevels) - row.mean / row.step;
  } else {
    float low = std::numeric_limits<float>::infinity();
    float high = -low;
    for (const float x : rotated) {
      low = std::min(low, clamped(x));
      high = std::max(high, clamped(x));
    }
    row.step = std::max(high - low, kMinRange) / kLevels;
    row.zero = -low / row.step;
  }
  row.stored_step = as_stored(row.step, stored);
  row.stored_zero = as_stored(row.zero, stored);
  return row;
}

std::int32_t oscar_code(float x, const OscarRow& row) {
  x = std::clamp(x, -row.bound, row.bound);
  if (row.by_deviation) {
    constexpr float kBound = 0.9810652732849121F;
    const float z = (x - row.mean) / row.deviation;
    return (z >= -kBound ? 1 : 0) + (z >= 0 ? 1 : 0) + (z >= kBound ? 1 : 0);
  }
  const float code = std::floor(x / row.step + row.zero + 0.5F);
  return static_cast<std::int32_t>(std::clamp(code, 0.0F, 3.0F));
}

float oscar_value(std::int32_t code, const OscarRow& row) {
  return (static_cast<float>(code) - row.stored_zero) * row.stored_step;
}

QuarotRow quarot_row(std::span<const float> rotated, std::int32_t levels, float clip) {
  const auto [min, max] = std::minmax_element(rotated.begin(), rotated.end());
  float low = std::min(*min, 0.0F) * clip;
  float high = std::max(*max, 0.0F) * clip;
  if (low == 0 && high == 0) {
    low = -1;
    high = 1;
  }
  const float step = (high - low) / static_cast<float>(levels);
  return {.step = step, .zero = std::nearbyint(-low / step), .levels = levels};
}

std::int32_t quarot_code(float x, const QuarotRow& row) {
  const float code = std::nearbyint(x / row.step) + row.zero;
  return static_cast<std::int32_t>(std::clamp(code, 0.0F, static_cast<float>(row.levels)));
}

float quarot_value(std::int32_t code, const QuarotRow& row) {
  return row.step * (static_cast<float>(code) - row.zero);
}

}  // namespace kvsim
