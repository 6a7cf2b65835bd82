#include "models/math/kvarn.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "models/math/low_int.hpp"
#include "models/units/check.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {
namespace {

// Bounds of a pass's standard deviation, of a scale's logarithm, and of a divisor.
constexpr float kMinStd = 1e-3F, kMaxStd = 1e3F;
constexpr float kMinLog = -0.3F, kMaxLog = 10.0F;
constexpr float kMinSpread = 1e-8F;
constexpr float kMinStep = 1e-10F;

/// A tile and its current scales.
class Balancer {
 public:
  Balancer(std::span<const float> tile, std::int32_t rows, std::int32_t columns)
      : tile_{tile},
        n_rows_{static_cast<std::size_t>(rows)},
        n_columns_{static_cast<std::size_t>(columns)},
        log_rows_(n_rows_, 0.0F),
        log_columns_(n_columns_, 0.0F) {
    scale();
  }
  void balance_columns() {
    for (std::size_t c = 0; c < n_columns_; ++c) add(log_columns_[c], column_std(c));
    scale();
  }
  void balance_rows() {
    for (std::size_t r = 0; r < n_rows_; ++r) add(log_rows_[r], row_std(r));
    scale();
  }
  [[nodiscard]] float imbalance() const {
    Spread columns, rows;
    for (std::size_t c = 0; c < n_columns_; ++c) columns.add(column_std(c));
    for (std::size_t r = 0; r < n_rows_; ++r) rows.add(row_std(r));
    return columns.ratio() + rows.ratio();
  }
  [[nodiscard]] const std::vector<float>& rows() const { return rows_; }
  [[nodiscard]] const std::vector<float>& columns() const { return columns_; }

 private:
  struct Spread {
    float min = std::numeric_limits<float>::infinity(), max = 0;
    void add(float x) {
      min = std::min(min, x);
      max = std::max(max, x);
    }
    [[nodiscard]] float ratio() const { return max / std::max(min, kMinSpread); }
  };
  static void add(float& log_scale, float std) {
    log_scale =
        std::clamp(log_scale + std::log(std::clamp(std, kMinStd, kMaxStd)), kMinLog, kMaxLog);
  }
  void scale() {
    rows_.resize(n_rows_);
    columns_.resize(n_columns_);
    for (std::size_t r = 0; r < n_rows_; ++r) rows_[r] = std::exp(log_rows_[r]);
    for (std::size_t c = 0; c < n_columns_; ++c) columns_[c] = std::exp(log_columns_[c]);
    balanced_.resize(tile_.size());
    for (std::size_t r = 0; r < n_rows_; ++r) {
      for (std::size_t c = 0; c < n_columns_; ++c) {
        balanced_[r * n_columns_ + c] = tile_[r * n_columns_ + c] / columns_[c] / rows_[r];
      }
    }
  }
  /// The unbiased standard deviation.
  [[nodiscard]] float std_of(std::size_t first, std::size_t stride, std::size_t n) const {
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += static_cast<double>(balanced_[first + i * stride]);
    const double mean = sum / static_cast<double>(n);
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double x = static_cast<double>(balanced_[first + i * stride]) - mean;
      squares += x * x;
    }
    return static_cast<float>(std::sqrt(squares / static_cast<double>(n - 1)));
  }
  [[nodiscard]] float row_std(std::size_t r) const { return std_of(r * n_columns_, 1, n_columns_); }
  [[nodiscard]] float column_std(std::size_t c) const { return std_of(c, n_columns_, n_rows_); }

  std::span<const float> tile_;
  std::size_t n_rows_, n_columns_;
  std::vector<float> log_rows_, log_columns_, rows_, columns_, balanced_;
};

}  // namespace

KvarnBalance kvarn_balance(std::span<const float> tile, std::int32_t rows, std::int32_t columns,
                           std::int32_t iterations) {
  KVSIM_CHECK(rows >= 2 && columns >= 2 &&
                  tile.size() == static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns),
              "{} numbers in a tile of {} x {}", tile.size(), rows, columns);
  Balancer state{tile, rows, columns};
  KvarnBalance best{.rows = state.rows(), .columns = state.columns()};
  best.imbalance = best.imbalance_before = state.imbalance();
  for (std::int32_t i = 0; i < iterations; ++i) {
    state.balance_columns();
    state.balance_rows();
    const float found = state.imbalance();
    if (found > best.imbalance) continue;
    best.imbalance = found;
    best.rows = state.rows();
    best.columns = state.columns();
  }
  return best;
}

float KvarnTile::value(std::int32_t row, std::int32_t column) const {
  const auto r = static_cast<std::size_t>(row);
  const auto c = static_cast<std::size_t>(column);
  const auto code = static_cast<float>(codes[r * static_cast<std::size_t>(n_columns) + c]);
  return (code * steps[r] + zeros[r]) * columns[c];
}

KvarnTile kvarn_tile(std::span<const float> tile, std::int32_t rows, std::int32_t columns,
                     std::int32_t levels, std::int32_t iterations) {
  const KvarnBalance balance = kvarn_balance(tile, rows, columns, iterations);
  const auto n = static_cast<std::size_t>(columns);
  KvarnTile out;
  out.n_columns = columns;
  const auto stored = [](float x) { return as_stored(x, Dtype::kFp16); };
  std::vector<float> row(n);
  const auto max_code = static_cast<float>(levels);
  for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
    for (std::size_t c = 0; c < n; ++c) {
      row[c] = tile[r * n + c] / balance.columns[c] / balance.rows[r];
    }
    const auto [min, max] = std::minmax_element(row.begin(), row.end());
    const float zero = *min;
    const float step = std::max((*max - zero) / max_code, kMinStep);
    for (const float x : row) {
      out.codes.push_back(
          static_cast<std::uint8_t>(std::clamp(std::nearbyint((x - zero) / step), 0.0F, max_code)));
    }
    out.steps.push_back(stored(balance.rows[r] * step));
    out.zeros.push_back(stored(balance.rows[r] * zero));
  }
  for (const float x : balance.columns) out.columns.push_back(stored(x));
  return out;
}

}  // namespace kvsim
