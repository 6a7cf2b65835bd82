#pragma once

#include <span>

namespace kvsim {

/// An entry that joins a kept one: its row and the cosine between both keys.
struct CosineJoining {
  std::span<const float> key, value;  // [d]
  double cosine = 0;
};

enum class CosineWeights : unsigned char {
  kPaper,  // e^u of those that join, e of the kept one, over their sum: convex
  kCode    // u of those that join, 1 of the kept one, over 1 + their number: shrinks keys
};

/// Merges `joining` into the kept entry `key`, `value` [d]: the weighted sum of all rows, in fp64
/// in the order given. Errors: ContractError if a length disagrees or nothing joins. Source: D2O
/// (Wan et al. 2024) and, of kCode, its released code.
void cosine_merge(std::span<double> key, std::span<double> value,
                  std::span<const CosineJoining> joining, CosineWeights weights);

/// The similarity that an entry has to reach to be merged, a moving average of the mean
/// similarities seen; before the first there is none (any NaN).
/// Source: D2O, the dynamic threshold.
[[nodiscard]] double next_cosine_threshold(double threshold, double mean, double keep, double take);

}  // namespace kvsim
