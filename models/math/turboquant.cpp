#include "models/math/turboquant.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "models/math/half.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

constexpr std::array kEngine3{.2449836F, .7556455F, 1.343180F, 2.150350F};
constexpr std::array kEngine4{.1284277F, .3881378F, .6568799F, .9424482F,
                              1.256258F, 1.617882F, 2.068447F, 2.730922F};
constexpr std::array kExact3{.2450942F, .7560053F, 1.343909F, 2.151946F};
constexpr std::array kExact4{.1283950F, .3880483F, .6567591F, .9423405F,
                             1.256231F, 1.618046F, 2.069017F, 2.732590F};
// LMDeploy's tables after ten iterations.
constexpr std::array kLmdeploy3{.2450942F, .7560052F, 1.3439093F, 2.1519456F};
constexpr std::array kLmdeploy3Bounds{.5005497F, 1.0499573F, 1.7479274F};
constexpr float kLmdeploy2Low = .4527808F, kLmdeploy2High = 1.5104176F, kLmdeploy2Bound = .9815992F;

float root(std::int32_t d) { return std::sqrt(static_cast<float>(d)); }

void rotate(std::span<float> row) {
  hadamard(row);
  const float scale = 1 / root(static_cast<std::int32_t>(row.size()));
  for (float& x : row) x *= scale;
}

float norm_of(std::span<const float> row) {
  float sum = 0;
  for (const float x : row) sum += x * x;
  return std::sqrt(sum);
}

float to_fp16(float x) { return fp16_to_float(float_to_fp16(x)); }

/// Returns the level of LMDeploy's 3-bit code, counted from the lowest.
float lmdeploy_level3(std::uint8_t code) {
  return code >= 4 ? kLmdeploy3[code - 4U] : -kLmdeploy3[3U - code];
}

}  // namespace

std::span<const float> gaussian_levels(std::int32_t bits, Codebook codebook) {
  KVSIM_CHECK(bits == 3 || bits == 4, "a codebook of {} bits", bits);
  if (codebook == Codebook::kEngine) {
    return bits == 3 ? std::span<const float>{kEngine3} : std::span<const float>{kEngine4};
  }
  return bits == 3 ? std::span<const float>{kExact3} : std::span<const float>{kExact4};
}

std::int32_t turboquant_code(float rotated, std::int32_t bits, Codebook codebook, std::int32_t d) {
  const std::span<const float> levels = gaussian_levels(bits, codebook);
  const auto half = static_cast<std::int32_t>(levels.size());
  const auto level = [&](std::int32_t code) {
    return code >= half ? levels[static_cast<std::size_t>(code - half)]
                        : -levels[static_cast<std::size_t>(half - 1 - code)];
  };
  const float scale = 1 / root(d);
  std::int32_t code = 0;
  while (code + 1 < 2 * half && (level(code) + level(code + 1)) / 2 * scale <= rotated) ++code;
  return code;
}

float turboquant_level(std::int32_t code, std::int32_t bits, Codebook codebook, std::int32_t d) {
  const std::span<const float> levels = gaussian_levels(bits, codebook);
  const auto half = static_cast<std::int32_t>(levels.size());
  const float level = code >= half ? levels[static_cast<std::size_t>(code - half)]
                                   : -levels[static_cast<std::size_t>(half - 1 - code)];
  return level / root(d);
}

void round_turboquant_key(std::span<float> key, std::int32_t bits, bool corrected,
                          Codebook codebook) {
  const auto d = static_cast<std::int32_t>(key.size());
  const float norm = norm_of(key);
  for (float& x : key) x /= norm + 1e-8F;
  rotate(key);
  float sum = 0;
  for (float& x : key) {
    x = turboquant_level(turboquant_code(x, bits, codebook, d), bits, codebook, d);
    sum += x * x;
  }
  const float scale = to_fp16(norm) / (corrected ? std::sqrt(sum + 1e-16F) : 1.0F);
  for (float& x : key) x *= scale;
  rotate(key);
}

TurboQuantValue turboquant_value(std::span<const float> row, std::int32_t bits) {
  const auto [low, high] = std::minmax_element(row.begin(), row.end());
  const std::int32_t levels = (1 << bits) - 1;
  return {.step = std::max((*high - *low) / static_cast<float>(levels), 1e-8F),
          .low = *low,
          .levels = levels};
}

std::int32_t turboquant_value_code(float x, const TurboQuantValue& row) {
  return std::min(static_cast<std::int32_t>(std::floor((x - row.low) / row.step + 0.5F)),
                  row.levels);
}

void round_turboquant_value(std::span<float> row, std::int32_t bits) {
  const TurboQuantValue scale = turboquant_value(row, bits);
  const float step = to_fp16(scale.step);
  const float low = to_fp16(scale.low);
  for (float& x : row) x = static_cast<float>(turboquant_value_code(x, scale)) * step + low;
}

SignedKey lmdeploy_turbo_key(std::span<const float> y, std::span<std::uint8_t> codes,
                             std::span<std::uint8_t> signs) {
  KVSIM_CHECK(codes.size() == y.size() && signs.size() == y.size(), "{} codes and {} signs of {}",
              codes.size(), signs.size(), y.size());
  const float scale = root(static_cast<std::int32_t>(y.size()));
  float sum = 0;
  for (const float x : y) sum += x * x;
  SignedKey key{.norm = std::sqrt(sum + 1e-8F)};
  float residuals = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const float u = y[i] / key.norm;
    std::uint8_t code = 0;
    for (int bound = 0; bound < 7; ++bound) {
      const float at = bound == 3  ? 0.0F
                       : bound > 3 ? kLmdeploy3Bounds[static_cast<std::size_t>(bound - 4)]
                                   : -kLmdeploy3Bounds[static_cast<std::size_t>(2 - bound)];
      if (at / scale < u) ++code;
    }
    codes[i] = code;
    const float residual = u - lmdeploy_level3(code) / scale;
    signs[i] = residual >= 0 ? 1 : 0;
    residuals += residual * residual;
  }
  key.half_step = std::sqrt(residuals + 1e-8F) / scale;
  return key;
}

void round_lmdeploy_turbo_key(std::span<float> key, Dtype dtype) {
  const std::size_t d = key.size();
  const float scale = root(static_cast<std::int32_t>(d));
  rotate(key);
  for (float& x : key) x = as_stored(x, dtype);
  std::vector<std::uint8_t> codes(d);
  std::vector<std::uint8_t> signs(d);
  const SignedKey stored = lmdeploy_turbo_key(key, codes, signs);
  const float norm = as_stored(stored.norm, dtype);
  const float half_step = as_stored(stored.half_step, dtype);
  for (std::size_t i = 0; i < d; ++i) {
    key[i] = norm * (lmdeploy_level3(codes[i]) / scale + (signs[i] != 0 ? half_step : -half_step));
  }
  rotate(key);
}

void round_lmdeploy_turbo_value(std::span<float> value, Dtype dtype) {
  const float scale = root(static_cast<std::int32_t>(value.size()));
  rotate(value);
  for (float& x : value) x = as_stored(x, dtype);
  float sum = 0;
  for (const float x : value) sum += x * x;
  const float norm = std::sqrt(sum + 1e-8F);
  const float stored = as_stored(norm, dtype);
  for (float& x : value) {
    const float u = x / norm;
    const float level = std::abs(u) * scale > kLmdeploy2Bound ? kLmdeploy2High : kLmdeploy2Low;
    x = stored * (u > 0 ? level : -level) / scale;
  }
  rotate(value);
}

}  // namespace kvsim
