#include "models/math/low_float.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

/// Squared error of `group` over the values.
float squared_error(const Nvfp4Group& group, std::span<const float> values, float global) {
  float sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float error = values[i] - nvfp4_value(group, i, global);
    sum += error * error;
  }
  return sum;
}

Nvfp4Group under_scale(std::span<const float> values, float global, float max, float target) {
  Nvfp4Group group;
  group.scale = e4m3_byte(max / (target * global));
  const float step = e4m3_value(group.scale) * global;
  if (step == 0) return group;
  for (std::size_t i = 0; i < values.size(); ++i) {
    group.codes[i] = e2m1_code(values[i] / step, E2m1Tie::kEven);
  }
  return group;
}

}  // namespace

std::uint8_t e2m1_code(float x, E2m1Tie tie) {
  const float magnitude = std::abs(x);
  const bool away = tie == E2m1Tie::kAway || (tie == E2m1Tie::kLower && x < 0);
  std::uint8_t code = 0;
  for (std::uint8_t next = 1; next < 8; ++next) {
    const float middle = (kE2m1[next - 1] + kE2m1[next]) / 2;
    const bool up_at_tie = away || (tie == E2m1Tie::kEven && next % 2 == 0);
    if (magnitude > middle || (magnitude == middle && up_at_tie)) code = next;
  }
  return static_cast<std::uint8_t>(code | (std::signbit(x) ? 8U : 0U));
}

std::uint8_t e4m3_byte(float x) {
  KVSIM_CHECK(!std::isnan(x), "E4M3 of NaN");
  const float value = round_to_fp8(x, Fp8::kE4m3);
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::abs(value);
  if (magnitude < 0x1p-6F) {
    return static_cast<std::uint8_t>(sign | static_cast<std::uint8_t>(magnitude * 0x1p9F));
  }
  const int exponent = std::ilogb(magnitude);
  const auto mantissa = static_cast<std::uint8_t>(std::ldexp(magnitude, 3 - exponent) - 8);
  return static_cast<std::uint8_t>(sign | ((exponent + 7) << 3) | mantissa);
}

float e4m3_value(std::uint8_t byte) {
  const int exponent = (byte >> 3U) & 15;
  const auto mantissa = static_cast<float>(byte & 7U);
  const float magnitude =
      exponent == 0 ? mantissa * 0x1p-9F : std::ldexp(8 + mantissa, exponent - 10);
  return (byte & 0x80U) != 0 ? -magnitude : magnitude;
}

void hadamard(std::span<float> row) {
  const std::size_t d = row.size();
  KVSIM_CHECK(std::has_single_bit(d), "a Hadamard rotation of {} channels", d);
  for (std::size_t half = 1; half < d; half *= 2) {
    for (std::size_t first = 0; first < d; first += 2 * half) {
      for (std::size_t i = first; i < first + half; ++i) {
        const float a = row[i];
        const float b = row[i + half];
        row[i] = a + b;
        row[i + half] = a - b;
      }
    }
  }
}

Nvfp4Group nvfp4_group(std::span<const float> values, float global, Nvfp4Search search) {
  KVSIM_CHECK(values.size() == 16 && global > 0, "{} values under a scale of {}", values.size(),
              global);
  const float max = abs_max(values);
  const Nvfp4Group six = under_scale(values, global, max, 6);
  if (search == Nvfp4Search::kMax6) return six;
  const Nvfp4Group four = under_scale(values, global, max, 4);
  return squared_error(four, values, global) < squared_error(six, values, global) ? four : six;
}

PowerGroup mx16_group(std::span<const float> values) {
  const float min = std::max(abs_max(values) / 6, 1e-10F);
  return {.exponent = static_cast<std::int32_t>(std::ceil(std::log2(min))), .is_zero = false};
}

PowerGroup ultraquant_group(std::span<const float> values) {
  const float max = abs_max(values);
  if (max == 0) return {.exponent = 0, .is_zero = true};
  const float exponent = std::floor(std::log2(0.156F * max) + 0.5F);
  return {.exponent = static_cast<std::int32_t>(std::clamp(exponent, -126.0F, 127.0F)),
          .is_zero = false};
}

}  // namespace kvsim
