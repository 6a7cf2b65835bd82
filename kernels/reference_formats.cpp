// References of the formats of engines.

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/reference.hpp"
#include "models/math/half.hpp"
#include "models/math/low_float.hpp"
#include "models/math/low_int.hpp"
#include "models/math/turboquant.hpp"
#include "models/units/check.hpp"

namespace kvsim::kernels {
namespace {

/// Copies x, calls act(row) on each row of the copy, which act may modify, and returns the copy.
template <class Act>
std::vector<float> for_rows(std::int64_t width, std::span<const float> x, Act act) {
  const auto n = static_cast<std::size_t>(width);
  KVSIM_CHECK(n > 0 && x.size() % n == 0, "{} numbers are no rows of {}", x.size(), n);
  std::vector<float> result{x.begin(), x.end()};
  const std::span<float> all{result};
  for (std::size_t first = 0; first < all.size(); first += n) act(all.subspan(first, n));
  return result;
}

/// Norm of a row, summed in lanes of eight channels and then over halves of the lanes.
float norm_by_lanes(std::span<const float> row) {
  std::vector<float> lanes(row.size() / static_cast<std::size_t>(kQuantPerLane));
  for (std::size_t i = 0; i < row.size(); ++i) {
    lanes[i / static_cast<std::size_t>(kQuantPerLane)] += row[i] * row[i];
  }
  for (std::size_t half = lanes.size() / 2; half > 0; half /= 2) {
    for (std::size_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return std::sqrt(lanes.front());
}

}  // namespace

std::vector<double> rotate_reference(std::int64_t head_dim, double factor,
                                     std::span<const float> x) {
  const auto d = static_cast<std::size_t>(head_dim);
  KVSIM_CHECK(d > 0 && x.size() % d == 0, "{} numbers are no rows of {}", x.size(), d);
  std::vector<double> result;
  for (std::size_t first = 0; first < x.size(); first += d) {
    for (std::size_t column = 0; column < d; ++column) {
      double sum = 0;
      for (std::size_t i = 0; i < d; ++i) {
        const bool is_negative = std::popcount(i & column) % 2 != 0;
        sum += is_negative ? -static_cast<double>(x[first + i]) : static_cast<double>(x[first + i]);
      }
      result.push_back(factor * sum);
    }
  }
  return result;
}

std::vector<float> token_head_reference(TokenHeadCode code, std::int64_t head_dim,
                                        std::span<const float> x) {
  return for_rows(head_dim, x, [code](std::span<float> row) {
    if (code == TokenHeadCode::kInt8) {
      const float step = int8_token_step(row);
      for (float& v : row) v = static_cast<float>(int8_token_code(v, step, false)) * step;
    } else {
      const float step = std::max(abs_max(row) / fp8_max(Fp8::kE4m3), 1e-6F);
      round_fp8_row(row, step, Fp8::kE4m3);
    }
  });
}

std::vector<float> int4_rotated_reference(Dtype dtype, std::int64_t head_dim,
                                          std::span<const float> x) {
  return for_rows(head_dim, x, [dtype](std::span<float> row) {
    hadamard(row);
    for (float& v : row) v = as_stored(v, dtype);
    const Int4Rotated step = int4_rotated_step(row);
    for (float& v : row) {
      v = static_cast<float>(int4_rotated_code(v, step) - step.zero) * step.stored();
    }
  });
}

std::vector<float> nvfp4_reference(float global, bool four_over_six, std::span<const float> x) {
  constexpr std::int64_t kGroup = 16;
  const auto search = four_over_six ? Nvfp4Search::kFourOverSix : Nvfp4Search::kMax6;
  return for_rows(kGroup, x, [&](std::span<float> row) {
    const Nvfp4Group group = nvfp4_group(row, global, search);
    for (std::size_t i = 0; i < row.size(); ++i) row[i] = nvfp4_value(group, i, global);
  });
}

std::vector<float> turboquant_key_reference(std::int32_t bits, std::int64_t head_dim,
                                            std::span<const float> x) {
  return for_rows(head_dim, x, [&](std::span<float> row) {
    const float norm = norm_by_lanes(row);
    for (float& v : row) v /= norm + 1e-8F;
    hadamard(row);
    const float scale = 1 / std::sqrt(static_cast<float>(head_dim));
    std::vector<std::int32_t> codes;
    for (const float v : row) {
      codes.push_back(
          turboquant_code(v * scale, bits, Codebook::kEngine, static_cast<std::int32_t>(head_dim)));
    }
    const auto key = turboquant_key(bits, fp16_to_float(float_to_fp16(norm)), codes);
    std::copy(key.begin(), key.end(), row.begin());
  });
}

std::vector<float> turboquant_key(std::int32_t bits, float norm,
                                  std::span<const std::int32_t> codes) {
  std::vector<float> key;
  float squares = 0;
  for (const std::int32_t code : codes) {
    key.push_back(
        turboquant_level(code, bits, Codebook::kEngine, static_cast<std::int32_t>(codes.size())));
    squares += key.back() * key.back();
  }
  const float scale = norm / std::sqrt(squares + 1e-16F);
  for (float& v : key) v *= scale;
  return key;
}

std::vector<float> turboquant_value_reference(std::int32_t bits, std::int64_t head_dim,
                                              std::span<const float> x) {
  return for_rows(head_dim, x, [bits](std::span<float> row) { round_turboquant_value(row, bits); });
}

}  // namespace kvsim::kernels
