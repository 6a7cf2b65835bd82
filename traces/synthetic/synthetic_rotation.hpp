#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "traces/synthetic/generate.hpp"

namespace kvsim::synthetic {

/// cos and sin of a position's angles, and the layout of the pairs.
class Rotation {
 public:
  explicit Rotation(const GenerateOptions& o) : pairs_{o.head_dim / 2}, theta_{o.rope_theta} {
    half_split_ = o.rope_style == RopeStyle::kHalfSplit;
    cos_.resize(static_cast<std::size_t>(pairs_));
    sin_.resize(static_cast<std::size_t>(pairs_));
  }
  [[nodiscard]] double frequency(std::int64_t pair) const {
    return std::pow(theta_, -2.0 * static_cast<double>(pair) / static_cast<double>(2 * pairs_));
  }
  [[nodiscard]] std::int64_t first(std::int64_t pair) const {
    return half_split_ ? pair : 2 * pair;
  }
  [[nodiscard]] std::int64_t second(std::int64_t pair) const {
    return half_split_ ? pair + pairs_ : 2 * pair + 1;
  }
  void stand_at(std::int64_t position) {
    for (std::int64_t j = 0; j < pairs_; ++j) {
      const double angle = static_cast<double>(position) * frequency(j);
      cos_[static_cast<std::size_t>(j)] = std::cos(angle);
      sin_[static_cast<std::size_t>(j)] = std::sin(angle);
    }
  }
  void turn(float* row) const {
    for (std::int64_t j = 0; j < pairs_; ++j) {
      const double c = cos_[static_cast<std::size_t>(j)], s = sin_[static_cast<std::size_t>(j)];
      const auto x = static_cast<double>(row[first(j)]), y = static_cast<double>(row[second(j)]);
      row[first(j)] = static_cast<float>(x * c - y * s);
      row[second(j)] = static_cast<float>(x * s + y * c);
    }
  }

 private:
  std::int64_t pairs_;
  double theta_;
  bool half_split_ = true;
  std::vector<double> cos_, sin_;
};

/// Unit directions before RoPE by which a query finds the sink and the heavy hitters: in the
/// slowest pairs, rotated by half the trace's length so that the agreement is best in the middle.
struct Attractors {
  std::vector<float> sink_key, heavy_key, sink_query, heavy_query;  // [head_dim]
};

[[nodiscard]] Attractors attractors_of(const GenerateOptions& o, const Rotation& rope);

}  // namespace kvsim::synthetic
