#include "models/math/attention/index_scores.hpp"

#include <algorithm>
#include <cmath>

#include "models/math/low_float.hpp"
#include "models/math/quantise.hpp"
#include "models/units/check.hpp"

namespace kvsim {

void index_scores(std::span<const float> q, std::span<const float> weights,
                  std::span<const float> keys, std::span<double> out) {
  KVSIM_CHECK(!weights.empty() && q.size() % weights.size() == 0, "{} numbers of {} heads",
              q.size(), weights.size());
  const std::size_t d = q.size() / weights.size();
  KVSIM_CHECK(keys.size() == out.size() * d, "{} numbers of {} keys", keys.size(), out.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    double score = 0;
    for (std::size_t h = 0; h < weights.size(); ++h) {
      double product = 0;
      for (std::size_t j = 0; j < d; ++j) {
        product += static_cast<double>(q[h * d + j]) * static_cast<double>(keys[i * d + j]);
      }
      score += static_cast<double>(weights[h]) * std::max(product, 0.0);
    }
    out[i] = score;
  }
}

void round_index_row(std::span<float> row) {
  hadamard(row);
  const float norm = 1 / std::sqrt(static_cast<float>(row.size()));
  for (float& x : row) x *= norm;
  constexpr float kMinAbsMax = 1e-4F;
  const float max = std::max(abs_max(row), kMinAbsMax);
  const float scale = std::exp2(std::ceil(std::log2(max / fp8_max(Fp8::kE4m3))));
  round_fp8_row(row, scale, Fp8::kE4m3);
}

}  // namespace kvsim
