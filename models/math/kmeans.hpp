#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

// Lloyd's algorithm without random numbers. Released codes start from k-means++ with a seed of
// their library, whose centres these only approximate.

/// `count` levels for the numbers `values`, ascending. Starts at the middle of `count` equal shares
/// of the sorted numbers; stops when no number changes its level, or after `iterations`. A level
/// without numbers stays. Fewer numbers than levels: levels repeat.
/// Errors: ContractError if there is no number or count < 1.
[[nodiscard]] std::vector<float> kmeans_levels(std::vector<float> values, std::int32_t count,
                                               std::int32_t iterations);

/// Centres [count, d] of rows [n, d] by Euclidean distance. Starts at `count` rows spread evenly
/// over the rows; otherwise as kmeans_levels. `nearest`: the centre of each row; ties go to the
/// first. Errors: ContractError if n or count < 1 or the span is not whole rows.
struct KmeansRows {
  std::vector<float> centres;
  std::vector<std::int32_t> nearest;
};
[[nodiscard]] KmeansRows kmeans_rows(std::span<const float> rows, std::int32_t d,
                                     std::int32_t count, std::int32_t iterations);
/// The centre nearest to `row` [d]; ties go to the first.
[[nodiscard]] std::int32_t nearest_centre(std::span<const float> row,
                                          std::span<const float> centres);

}  // namespace kvsim
