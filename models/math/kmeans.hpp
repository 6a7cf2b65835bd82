#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

// Lloyd's algorithm without random numbers. Released codes start from k-means++ with their
// library's random seed; these functions only approximate their centres.

/// Returns `count` ascending levels for `values`. Starts at the middle of `count` equal shares of
/// the sorted values; stops when the assignment is unchanged, or after `iterations`. A level
/// without values is unchanged. With fewer values than levels, levels repeat.
/// Throws ContractError if there are no values or count < 1.
[[nodiscard]] std::vector<float> kmeans_levels(std::vector<float> values, std::int32_t count,
                                               std::int32_t iterations);

/// Computes centres [count, d] of rows [n, d] by Euclidean distance. Starts at `count` evenly
/// spaced rows; otherwise as kmeans_levels. `nearest`: the index of each row's centre; ties go to
/// the first. Throws ContractError if n or count < 1 or the span is not whole rows.
struct KmeansRows {
  std::vector<float> centres;
  std::vector<std::int32_t> nearest;
};
[[nodiscard]] KmeansRows kmeans_rows(std::span<const float> rows, std::int32_t d,
                                     std::int32_t count, std::int32_t iterations);
/// Returns the index of the centre nearest to `row` [d]; ties go to the first.
[[nodiscard]] std::int32_t nearest_centre(std::span<const float> row,
                                          std::span<const float> centres);

}  // namespace kvsim
