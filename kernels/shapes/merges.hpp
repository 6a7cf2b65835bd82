#pragma once

#include <cstdint>

#include "kernels/shapes/traffic.hpp"

// Merges of entries.

namespace kvsim::kernels {

struct MergeShape {
  std::int64_t merges = 1;
  std::int64_t entries = 1;  // rows that pairs are chosen from; ignored by slerp
  std::int64_t head_dim = 128;
};
/// Reads both rows; writes their direction, two norms and, if requested, a distance.
[[nodiscard]] constexpr KernelTraffic slerp_traffic(const MergeShape& s, std::int64_t element_bytes,
                                                    bool with_distance) {
  const std::int64_t rows = s.merges * s.head_dim * element_bytes;
  return {Bytes{2 * rows}, Bytes{rows + (with_distance ? 12 : 8) * s.merges}};
}
/// Reads both entries' keys and values, with two positions, votes and scores; writes one of each.
[[nodiscard]] constexpr KernelTraffic zip_merge_traffic(const MergeShape& s,
                                                        std::int64_t element_bytes) {
  const std::int64_t rows = s.merges * s.head_dim * element_bytes;
  return {Bytes{4 * rows + 24 * s.merges}, Bytes{2 * rows + 8 * s.merges}};
}

struct ResidualShape {
  std::int64_t merges = 1;    // rows of a cache, each with one merge
  std::int64_t slots = 1;     // residual slots of a row
  std::int64_t capacity = 2;  // entries of a row
  std::int64_t head_dim = 128;
};
/// Reads the victim's key and value, the keys of all slots, the value and count of one slot, and
/// the victim's position.
[[nodiscard]] constexpr KernelTraffic residual_traffic(const ResidualShape& s,
                                                       std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  return {Bytes{s.merges * ((3 + s.slots) * row + 8)}, Bytes{s.merges * (2 * row + 4)}};
}

/// Rows whose entries are searched for the key most similar to that of the evicted entry.
struct NearestShape {
  std::int64_t rows = 1;
  std::int64_t entries = 2, capacity = 2;
  std::int64_t head_dim = 128;
};
inline constexpr std::int64_t kNearestWarps = 8;  // warps of a row's block
/// Every other key is read once; each warp of a row's block reads the victim's key and index.
[[nodiscard]] constexpr KernelTraffic nearest_traffic(const NearestShape& s,
                                                      std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  return {Bytes{s.rows * ((s.entries - 1) * row + kNearestWarps * (row + 4))}, Bytes{8 * s.rows}};
}
/// Two indices, a cosine and a threshold per row. In rows whose entry is merged, both entries' keys
/// and values are read and one of each is written.
[[nodiscard]] constexpr KernelTraffic cosine_merge_traffic(const NearestShape& s,
                                                           std::int64_t joined,
                                                           std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  return {Bytes{16 * s.rows + 4 * joined * row}, Bytes{8 * s.rows + 2 * joined * row}};
}

/// Rows in which an entry's value may be spread over other entries.
struct SpreadShape {
  std::int64_t rows = 1;
  std::int64_t max_takers = 1;
  std::int64_t capacity = 2;
  std::int64_t head_dim = 128;
};
/// `takers`: takers of all rows; `spread_rows`: rows that spread, to `spread_takers` takers in
/// total. Takers' indices are read for the probability and again when the value is spread.
[[nodiscard]] constexpr KernelTraffic spread_traffic(const SpreadShape& s, std::int64_t takers,
                                                     std::int64_t spread_rows,
                                                     std::int64_t spread_takers,
                                                     std::int64_t element_bytes) {
  const std::int64_t row = s.head_dim * element_bytes;
  return {Bytes{s.rows * (12 + 4 * s.max_takers) + 4 * takers +
                spread_rows * (4 * s.max_takers + row) + spread_takers * row},
          Bytes{4 * s.rows + spread_takers * row}};
}

}  // namespace kvsim::kernels
