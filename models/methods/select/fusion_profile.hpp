#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// What the rows of a profile hold.
enum class ProfileSpace : std::uint8_t { kProbability, kLogit };

/// Attention of the last `rows` queries over entries, a column an entry; columns are named by
/// handles that stay valid until released. Beyond what was written a column says "no attention":
/// 0, or a logit of -infinity.
class AttentionProfile {
 public:
  AttentionProfile(std::int32_t rows, ProfileSpace space)
      : rows_{static_cast<std::size_t>(rows)}, space_{space} {}

  [[nodiscard]] std::int32_t add_column();
  void release(std::int32_t column) { free_.push_back(column); }
  /// The oldest row makes place; columns that `write` does not name have no attention in the new.
  void next_row() { row_ = (row_ + 1) % rows_; }
  void write(std::int32_t column, double attention) { at(column)[row_] = attention; }
  [[nodiscard]] std::span<const double> column(std::int32_t handle) const {
    return std::span{data_}.subspan(static_cast<std::size_t>(handle) * rows_, rows_);
  }
  /// The column becomes (or takes in) `rows`, of a profile with as many of them.
  void take(std::int32_t column, std::span<const double> rows, bool add);
  /// Adds `from` to `into` row by row, or takes the larger.
  void combine(std::int32_t into, std::int32_t from, bool take_max);

  /// Fused score of each of `columns`: sum or maximum over the rows. Logits are turned into
  /// probabilities over `columns` first, row by row. out [columns].
  void fuse(std::span<const std::int32_t> columns, bool take_max, std::vector<double>& out);

 private:
  [[nodiscard]] double* at(std::int32_t column) {
    return data_.data() + static_cast<std::size_t>(column) * rows_;
  }

  std::size_t rows_;
  ProfileSpace space_;
  std::size_t row_ = 0;       // of the newest query
  std::vector<double> data_;  // [columns, rows]
  std::vector<std::int32_t> free_;
  std::vector<double> highest_, sum_, weight_;  // scratch of fuse
};

}  // namespace kvsim
