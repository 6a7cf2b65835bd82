#include "models/math/quantise.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "models/math/half.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

float to_fp16(float x) { return fp16_to_float(float_to_fp16(x)); }

/// Rounds `n` values at a distance of `stride`.
void round_asymmetric(float* first, std::size_t n, std::size_t stride, std::int32_t levels) {
  float low = *first;
  float high = *first;
  for (std::size_t i = 1; i < n; ++i) {
    low = std::min(low, first[i * stride]);
    high = std::max(high, first[i * stride]);
  }
  const AsymmetricGroup group = asymmetric_group(low, high, levels);
  for (std::size_t i = 0; i < n; ++i) {
    float& x = first[i * stride];
    x = asymmetric_value(asymmetric_code(x, group, levels), group);
  }
}

struct Fp8Shape {
  int mantissa_bits;
  int lowest_exponent;  // of normal numbers
  float max;
};

Fp8Shape shape_of(Fp8 format) {
  return format == Fp8::kE4m3 ? Fp8Shape{3, -6, 448.0F} : Fp8Shape{2, -14, 57344.0F};
}

/// Unbiased exponent of a normal fp32 number; -127 for a subnormal.
int exponent_of(float x) {
  return static_cast<int>((std::bit_cast<std::uint32_t>(x) >> 23U) & 0xFFU) - 127;
}

/// 2^exponent, for exponents of normal fp32 numbers.
float power_of_two(int exponent) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(exponent + 127) << 23U);
}

}  // namespace

AsymmetricGroup asymmetric_group(float low, float high, std::int32_t levels) {
  return {.step = to_fp16((high - low) / static_cast<float>(levels)), .zero = to_fp16(low)};
}

std::int32_t asymmetric_code(float x, AsymmetricGroup group, std::int32_t levels) {
  if (group.step == 0) return 0;
  const float code = std::nearbyint((x - group.zero) / group.step);
  return static_cast<std::int32_t>(std::clamp(code, 0.0F, static_cast<float>(levels)));
}

float asymmetric_value(std::int32_t code, AsymmetricGroup group) {
  return group.zero + group.step * static_cast<float>(code);
}

void round_asymmetric_row(std::span<float> row, std::int32_t group, std::int32_t levels) {
  KVSIM_CHECK(group >= 1 && levels >= 1, "groups of {}, {} levels", group, levels);
  const auto size = static_cast<std::size_t>(group);
  for (std::size_t at = 0; at < row.size(); at += size) {
    round_asymmetric(row.data() + at, std::min(size, row.size() - at), 1, levels);
  }
}

void round_asymmetric_columns(std::span<float> rows, std::int32_t d, std::int32_t group,
                              std::int32_t levels) {
  const auto width = static_cast<std::size_t>(d);
  KVSIM_CHECK(group >= 1 && levels >= 1 && d >= 1 && rows.size() % width == 0,
              "groups of {}, {} levels, {} values of rows of {}", group, levels, rows.size(), d);
  const auto size = static_cast<std::size_t>(group);
  const std::size_t n = rows.size() / width;
  for (std::size_t at = 0; at < n; at += size) {
    for (std::size_t j = 0; j < width; ++j) {
      round_asymmetric(rows.data() + at * width + j, std::min(size, n - at), width, levels);
    }
  }
}

float int8_step(std::span<const float> row) { return to_fp16(abs_max(row) / 127.0F); }

std::int32_t int8_code(float x, float step) {
  if (step == 0) return 0;
  return static_cast<std::int32_t>(std::clamp(std::nearbyint(x / step), -127.0F, 127.0F));
}

void round_int8_row(std::span<float> row) {
  const float step = int8_step(row);
  for (float& x : row) x = static_cast<float>(int8_code(x, step)) * step;
}

float fp8_max(Fp8 format) { return shape_of(format).max; }

float round_to_fp8(float x, Fp8 format) {
  if (std::isnan(x) || x == 0) return x;
  const Fp8Shape shape = shape_of(format);
  if (std::abs(x) >= shape.max) return std::copysign(shape.max, x);
  const int exponent = std::max(exponent_of(x), shape.lowest_exponent);
  const int ulp = exponent - shape.mantissa_bits;
  // Rounding up may exceed the format's largest value.
  const float rounded = std::rint(x * power_of_two(-ulp)) * power_of_two(ulp);
  return std::abs(rounded) > shape.max ? std::copysign(shape.max, x) : rounded;
}

void round_fp8_row(std::span<float> row, float scale, Fp8 format) {
  if (scale == 0) return;
  for (float& x : row) x = round_to_fp8(x / scale, format) * scale;
}

float abs_max(std::span<const float> values) {
  float max = 0;
  for (const float x : values) max = std::max(max, std::abs(x));
  return max;
}

void smoothing_scales(std::span<const float> key_max, std::span<const float> query_max, double a,
                      std::span<float> out) {
  KVSIM_CHECK(key_max.size() == out.size() && query_max.size() == out.size(),
              "{} keys' and {} queries' maxima of {} channels", key_max.size(), query_max.size(),
              out.size());
  for (std::size_t j = 0; j < out.size(); ++j) {
    const auto key = static_cast<double>(key_max[j]);
    const auto query = static_cast<double>(query_max[j]);
    out[j] = key > 0 && query > 0 ? static_cast<float>(std::pow(key, a) / std::pow(query, 1.0 - a))
                                  : 1.0F;
  }
}

}  // namespace kvsim
