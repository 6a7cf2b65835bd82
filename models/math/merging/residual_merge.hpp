#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "models/math/attention/attend.hpp"

namespace kvsim {

/// Of `n` candidates with keys key_of(i), the index of the one most similar to `key`; ties go to
/// the first; -1 if there are none. Similarity is by dot product or by distance. Source: ZeroMerge
/// (Liu et al. 2025), eq. (6).
template <class KeyOf>
[[nodiscard]] std::int64_t most_similar_key(std::span<const float> key, std::int64_t n,
                                            KeyOf key_of, bool by_distance = false) {
  std::int64_t best = -1;
  double highest = -std::numeric_limits<double>::infinity();
  for (std::int64_t i = 0; i < n; ++i) {
    const std::span<const float> candidate = key_of(i);
    const double similarity = by_distance ? -squared_distance(candidate, key) : dot(candidate, key);
    if (best < 0 || similarity > highest) {
      highest = similarity;
      best = i;
    }
  }
  return best;
}

/// Adds one more row to a mean over `count` rows: mean += (row - mean) / (count + 1). fp64; mean
/// and row [d]. Source: ZeroMerge, eq. (7).
void join_mean(std::span<double> mean, std::span<const float> row, double count);

}  // namespace kvsim
