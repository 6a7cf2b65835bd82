#pragma once

#include <span>

namespace kvsim {

/// An entry to merge into a kept one: its row, and the cosine u between the two keys.
struct CosineJoining {
  std::span<const float> key, value;  // [d]
  double cosine = 0;
};

enum class CosineWeights : unsigned char {
  kPaper,  // weights e^u for joining entries, e for the kept one, over their sum: convex
  kCode    // weights u for joining entries, 1 for the kept one, over 1 + their number: shrinks keys
};

/// Merges `joining` into the kept entry `key`, `value` [d]: the weighted sum of all rows, in fp64
/// in the given order. Throws ContractError if a length disagrees or `joining` is empty.
/// Source: D2O (Wan et al. 2024); for kCode, its released code.
void cosine_merge(std::span<double> key, std::span<double> value,
                  std::span<const CosineJoining> joining, CosineWeights weights);

/// The next similarity threshold for merging: a moving average of the mean similarities seen. A NaN
/// `threshold` means that there is none yet; the result is then `mean`.
/// Source: D2O, the dynamic threshold.
[[nodiscard]] double next_cosine_threshold(double threshold, double mean, double keep, double take);

}  // namespace kvsim
