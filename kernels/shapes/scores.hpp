#pragma once

#include <cstdint>

#include "kernels/shapes/traffic.hpp"

// Score updates and selection by scores.

namespace kvsim::kernels {

/// scores [rows, stride], probabilities [rows * group, stride]; strides are multiples of 4.
struct ScoreShape {
  std::int64_t rows = 1, group = 1, entries = 1, stride = 4;
};
[[nodiscard]] constexpr KernelTraffic update_scores_traffic(const ScoreShape& s) {
  return {Bytes{4 * s.rows * s.entries * (s.group + 1)}, Bytes{4 * s.rows * s.entries}};
}

/// The group's logits and the average are read once.
[[nodiscard]] constexpr KernelTraffic log_average_traffic(const ScoreShape& s) {
  return update_scores_traffic(s);
}

/// A ring of `window` steps' scores in addition.
struct WindowShape {
  ScoreShape scores;
  std::int64_t window = 1;
};
/// Reads the group's rows and the window's rows except the newest; writes the newest row and the
/// fusion.
[[nodiscard]] constexpr KernelTraffic fuse_window_traffic(const WindowShape& s) {
  const std::int64_t row = 4 * s.scores.rows * s.scores.entries;
  return {Bytes{row * (s.scores.group + s.window - 1)}, Bytes{2 * row}};
}

/// Rows of scores to choose from.
struct SelectShape {
  std::int64_t rows = 1, entries = 1, stride = 4;
  std::int64_t keep = 1;  // C of top-C; otherwise unused
};
[[nodiscard]] constexpr KernelTraffic argmin_traffic(const SelectShape& s) {
  return {Bytes{4 * s.rows * s.entries}, Bytes{8 * s.rows}};
}
/// Four passes of eight bits each find the threshold; a fifth writes the kept positions.
[[nodiscard]] constexpr KernelTraffic top_traffic(const SelectShape& s) {
  const std::int64_t kept = s.keep < s.entries ? s.keep : s.entries;
  return {Bytes{5 * 4 * s.rows * s.entries}, Bytes{4 * s.rows * kept}};
}

/// Reads scores once; writes the positions of the `kept` entries of all rows and the count of each
/// row.
[[nodiscard]] constexpr KernelTraffic threshold_traffic(const SelectShape& s, std::int64_t kept) {
  return {Bytes{4 * s.rows * s.entries}, Bytes{4 * kept + 4 * s.rows}};
}
/// Reads distances for their range and again for the selection; writes retained_at of each entry,
/// the positions of the `kept` entries of all rows, and the count of each row.
[[nodiscard]] constexpr KernelTraffic retain_traffic(const SelectShape& s, std::int64_t kept) {
  return {Bytes{2 * 4 * s.rows * s.entries}, Bytes{4 * s.rows * (s.entries + 1) + 4 * kept}};
}

}  // namespace kvsim::kernels
