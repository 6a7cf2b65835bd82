#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Rotary position embedding by index difference: R(delta) rotates pair j by delta * inv_freq[j].
class Rope {
 public:
  /// Pair j is (j, j + d/2) in half-split style (Hugging Face), (2j, 2j + 1) in interleaved style
  /// (the original Llama layout). inv_freq[j] = theta^(-2j/d). Throws ContractError if d is odd or
  /// theta <= 0.
  Rope(std::int32_t head_dim, double theta, bool interleaved);

  /// Replaces row [d] by R(delta) row.
  void rotate(std::span<float> row, std::int64_t delta) const;
  void rotate(std::span<double> row, std::int64_t delta) const;

  /// Mean of R(position) over positions first … first + count - 1; each pair is [[c, -s], [s, c]].
  struct MeanRotation {
    std::vector<double> cos, sin;  // [d / 2]
  };
  [[nodiscard]] MeanRotation mean_rotation(std::int64_t first, std::int64_t count) const;
  /// Applies the mean rotation to row [d].
  void turn(std::span<double> row, const MeanRotation& mean) const;

  /// Pairs of a row (d / 2), the indices of a pair's elements, and its angle per position.
  [[nodiscard]] std::size_t pairs() const { return inv_freq_.size(); }
  [[nodiscard]] std::size_t first_of(std::size_t pair) const {
    return interleaved_ ? 2 * pair : pair;
  }
  [[nodiscard]] std::size_t second_of(std::size_t pair) const {
    return interleaved_ ? 2 * pair + 1 : pair + inv_freq_.size();
  }
  [[nodiscard]] double frequency(std::size_t pair) const { return inv_freq_[pair]; }

 private:
  template <class T>
  void rotate_row(std::span<T> row, std::int64_t delta) const;

  std::vector<double> inv_freq_;
  bool interleaved_;
};

}  // namespace kvsim
