#pragma once

// Internal to models/methods/prefill: tile patterns and functions that several choices use.

#include <cstdint>
#include <span>
#include <vector>

#include "models/methods/prefill_axis.hpp"

namespace kvsim {

/// Square tiles of a prompt's attention; only causal tiles can be computed.
class TilePattern final : public PrefillPattern {
 public:
  TilePattern(std::int64_t prompt, std::int64_t block);
  [[nodiscard]] std::int64_t blocks() const { return blocks_; }
  [[nodiscard]] bool has(std::int64_t row, std::int64_t column) const {
    return tiles_[index(row, column)] != 0;
  }
  /// Ignores tiles that are not causal.
  void add(std::int64_t row, std::int64_t column) {
    if (column <= row) tiles_[index(row, column)] = 1;
  }
  void add_all();
  void row(std::int64_t t, std::span<std::uint8_t> computed) const override;

 private:
  [[nodiscard]] std::size_t index(std::int64_t row, std::int64_t column) const {
    return static_cast<std::size_t>(row * blocks_ + column);
  }
  std::int64_t block_, blocks_;
  std::vector<std::uint8_t> tiles_;  // [blocks, blocks]
};

/// Columns and diagonals: keys that all later queries attend to, and distances from a query to a
/// key.
class VerticalSlashPattern final : public PrefillPattern {
 public:
  explicit VerticalSlashPattern(std::int64_t prompt)
      : columns_(static_cast<std::size_t>(prompt)), distances_(columns_.size()) {}
  void add_column(std::int64_t key) { columns_[static_cast<std::size_t>(key)] = 1; }
  void add_distance(std::int64_t distance) { distances_[static_cast<std::size_t>(distance)] = 1; }
  void row(std::int64_t t, std::span<std::uint8_t> computed) const override;

 private:
  std::vector<std::uint8_t> columns_, distances_;
};

/// The attention of the last `rows` queries: probabilities summed by key and by distance, [prompt]
/// each. `rows` is at most the prompt.
struct LastRows {
  std::vector<double> by_key, by_distance;
};
[[nodiscard]] LastRows last_rows(const PrefillHead& head, std::int64_t rows);

/// Computes the softmax of `logits` in place. Elements of -infinity become 0.
void softmax(std::span<double> logits);
/// Returns the indices of `values` in descending order of value; ties by ascending index.
[[nodiscard]] std::vector<std::int64_t> by_falling(std::span<const double> values);
/// Returns the means of rows [prompt, d] per block (the last may be shorter): [blocks, d].
[[nodiscard]] std::vector<double> block_means(std::span<const float> rows, std::int32_t d,
                                              std::int64_t block);
[[nodiscard]] double dot(std::span<const double> a, std::span<const double> b);

}  // namespace kvsim
