#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// Rotary position embedding by index difference: R(delta) turns pair j by delta * inv_freq[j].
class Rope {
 public:
  /// Pair j is (j, j + d/2) in half-split style (Hugging Face), (2j, 2j + 1) in interleaved style
  /// (the original Llama layout). inv_freq[j] = theta^(-2j/d). Errors: ContractError if d is odd or
  /// theta <= 0.
  Rope(std::int32_t head_dim, double theta, bool interleaved);

  /// row [d] becomes R(delta) row.
  void rotate(std::span<float> row, std::int64_t delta) const;

 private:
  std::vector<double> inv_freq_;
  bool interleaved_;
};

}  // namespace kvsim
