#include "models/math/attention/rope.hpp"

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

template <class T>
void Rope::rotate_row(std::span<T> row, std::int64_t delta) const {
  KVSIM_CHECK(row.size() == 2 * inv_freq_.size(), "row of {}", row.size());
  if (delta == 0) return;  // keeps the row bit-identical
  for (std::size_t j = 0; j < inv_freq_.size(); ++j) {
    const double angle = static_cast<double>(delta) * inv_freq_[j];
    const double c = std::cos(angle);
    const double s = std::sin(angle);
    T& first = row[first_of(j)];
    T& second = row[second_of(j)];
    const auto x = static_cast<double>(first);
    const auto y = static_cast<double>(second);
    first = static_cast<T>(x * c - y * s);
    second = static_cast<T>(x * s + y * c);
  }
}

void Rope::rotate(std::span<float> row, std::int64_t delta) const { rotate_row(row, delta); }
void Rope::rotate(std::span<double> row, std::int64_t delta) const { rotate_row(row, delta); }

Rope::MeanRotation Rope::mean_rotation(std::int64_t first, std::int64_t count) const {
  KVSIM_CHECK(count >= 1, "a mean of {} rotations", count);
  MeanRotation mean;
  for (const double frequency : inv_freq_) {
    double c = 0;
    double s = 0;
    for (std::int64_t at = first; at < first + count; ++at) {
      c += std::cos(static_cast<double>(at) * frequency);
      s += std::sin(static_cast<double>(at) * frequency);
    }
    mean.cos.push_back(c / static_cast<double>(count));
    mean.sin.push_back(s / static_cast<double>(count));
  }
  return mean;
}

void Rope::turn(std::span<double> row, const MeanRotation& mean) const {
  KVSIM_CHECK(row.size() == 2 * inv_freq_.size() && mean.cos.size() == inv_freq_.size(),
              "row of {}, {} pairs", row.size(), mean.cos.size());
  for (std::size_t j = 0; j < inv_freq_.size(); ++j) {
    const double x = row[first_of(j)];
    const double y = row[second_of(j)];
    row[first_of(j)] = x * mean.cos[j] - y * mean.sin[j];
    row[second_of(j)] = x * mean.sin[j] + y * mean.cos[j];
  }
}

}  // namespace kvsim
