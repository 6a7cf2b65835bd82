#include "models/math/rope.hpp"

#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {

Rope::Rope(std::int32_t head_dim, double theta, bool interleaved) : interleaved_{interleaved} {
  KVSIM_CHECK(head_dim >= 2 && head_dim % 2 == 0 && theta > 0, "head_dim {}, theta {}", head_dim,
              theta);
  for (std::int32_t j = 0; j < head_dim / 2; ++j) {
    inv_freq_.push_back(std::pow(theta, -2.0 * j / head_dim));
  }
}

void Rope::rotate(std::span<float> row, std::int64_t delta) const {
  KVSIM_CHECK(row.size() == 2 * inv_freq_.size(), "row of {}", row.size());
  if (delta == 0) return;  // bit-identical, not merely close
  for (std::size_t j = 0; j < inv_freq_.size(); ++j) {
    const std::size_t first = interleaved_ ? 2 * j : j;
    const std::size_t second = interleaved_ ? 2 * j + 1 : j + inv_freq_.size();
    const double angle = static_cast<double>(delta) * inv_freq_[j];
    const double c = std::cos(angle);
    const double s = std::sin(angle);
    const auto x = static_cast<double>(row[first]);
    const auto y = static_cast<double>(row[second]);
    row[first] = static_cast<float>(x * c - y * s);
    row[second] = static_cast<float>(x * s + y * c);
  }
}

}  // namespace kvsim
