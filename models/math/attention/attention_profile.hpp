#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// The contents of a profile's rows.
enum class ProfileSpace : std::uint8_t { kProbability, kLogit };

/// Attention of the last `rows` queries over entries, with one column per entry. Columns are
/// identified by handles that stay valid until released. Unwritten rows of a column mean "no
/// attention": 0, or a logit of -infinity.
class AttentionProfile {
 public:
  /// `fuse_max`: scores are maxima over the rows; otherwise sums.
  AttentionProfile(std::int32_t rows, ProfileSpace space, bool fuse_max);

  [[nodiscard]] std::int32_t add_column();
  void release(std::int32_t column) { free_.push_back(column); }
  /// The newest row replaces the oldest; `write` must then be called for every column.
  void next_row() { row_ = (row_ + 1) % rows_; }
  void write(std::int32_t column, double attention);
  /// Copies `from`, a column of a profile of the same shape, into the column, or adds it.
  void take(std::int32_t column, std::span<const double> from, bool add);
  [[nodiscard]] std::span<const double> column(std::int32_t handle) const {
    return std::span{data_}.subspan(static_cast<std::size_t>(handle) * stride_, stride_);
  }
  /// Adds `from` to `into` row by row, or takes the larger value.
  void combine(std::int32_t into, std::int32_t from, bool take_max);

  /// Fused score of each of `columns`: sum or maximum over the rows. Logits are first converted to
  /// probabilities over `columns`, row by row. out [columns].
  void fuse(std::span<const std::int32_t> columns, std::vector<double>& out);

 private:
  [[nodiscard]] double* at(std::int32_t column) {
    return data_.data() + static_cast<std::size_t>(column) * stride_;
  }
  [[nodiscard]] double* parts_of(std::int32_t column) {
    return parts_.data() + static_cast<std::size_t>(column) * n_parts_;
  }
  void fuse_part(std::int32_t column, std::size_t part);
  void fuse_parts(std::int32_t column);
  void fuse_logits(std::span<const std::int32_t> columns, std::vector<double>& out);

  std::size_t rows_, stride_, n_parts_;
  ProfileSpace space_;
  bool fuse_max_;
  std::size_t row_ = 0;       // row of the newest query
  std::vector<double> data_;  // [columns, stride]: rows, then padding without attention
  // Probabilities: rows are fused in runs, so that a step only recomputes one run and combines the
  // runs.
  std::vector<double> parts_;  // [columns, runs]
  std::vector<std::int32_t> free_;
  std::vector<double> highest_, sum_, weight_;  // scratch of fuse
};

}  // namespace kvsim
