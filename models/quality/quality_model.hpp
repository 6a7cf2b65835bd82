#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/quality/quality_rows.hpp"

namespace kvsim {

/// Kind of change by a method; a prediction uses only measurements of the same kind.
enum class QualityKind : std::size_t {
  kEviction,
  kDecodeEviction,
  kShortDecode,
  kFormat,
  kCompute
};
inline constexpr std::size_t kQualityKinds = 5;
[[nodiscard]] QualityKind quality_kind(const QualityRow& row);
[[nodiscard]] std::string_view name_of(QualityKind kind);

/// Score over full score, predicted from other measurements.
struct QualityPrediction {
  double retained = 1.0;
  double spread = 0.0;     // deviation of the measurements used
  bool supported = false;  // the method was measured under this protocol with another model
  std::optional<double> low{}, high{};  // 90 % interval; set if there is enough evidence
  std::size_t rows = 0, models = 0;     // measurements of the same method
};

/// The measurements excluded when a row is predicted.
enum class LeaveOut : std::uint8_t { kPair, kModel };

/// Errors of leave-out predictions, for supported rows.
struct LeaveOutError {
  std::size_t rows = 0, pairs = 0;
  std::size_t unsupported = 0;  // rows of methods without other measurements
  std::size_t bounded = 0;      // rows with an interval
  std::optional<double> mean_absolute{}, median_absolute{}, bias{};
  std::optional<double> coverage{}, mean_width{};  // of those with an interval
};

/// A kernel mean over measured rows: every difference between two set-ups multiplies the weight by
/// a factor (docs/quality.md lists them). The interval is that of leave-one-model-out errors, in
/// units of the spread, by kind. The factors are constants; only the interval is fitted to the
/// rows.
class QualityModel {
 public:
  /// Excludes rows without a retained score and rows of full caches.
  explicit QualityModel(std::span<const QualityRow> rows);

  ~QualityModel();

  /// Predicts `query`, whose score is not used. nullopt if nothing of its kind was measured.
  [[nodiscard]] std::optional<QualityPrediction> predict(const QualityRow& query) const;
  /// The same without measurements of the query's (harness, model) pair, or of its model.
  [[nodiscard]] std::optional<QualityPrediction> predict_without(const QualityRow& query,
                                                                 LeaveOut out) const;
  /// Errors of predictions of each row without its pair, or its model; the interval of a row is
  /// calibrated without its model.
  [[nodiscard]] LeaveOutError leave_out_error(LeaveOut out, QualityKind kind) const;
  /// Errors of predictions of other rows.
  [[nodiscard]] LeaveOutError error_of(std::span<const QualityRow> rows, QualityKind kind) const;

 private:
  static constexpr std::size_t kNoPair = static_cast<std::size_t>(-1);
  struct Score {  // of a row, with its model left out of every harness
    std::size_t pair;
    std::string_view model;
    double error;  // in units of the spread
  };
  struct Evidence;
  template <class Query, class Skip>
  [[nodiscard]] std::optional<QualityPrediction> mean(const Query& query, Skip skip) const;
  [[nodiscard]] std::optional<QualityPrediction> mean_of(std::size_t row, LeaveOut out) const;
  /// Adds the interval from the scores of this kind, excluding those of `model`.
  void add_interval(QualityPrediction& p, QualityKind kind, std::string_view model) const;

  std::unique_ptr<Evidence> evidence_;
  std::vector<double> retained_{};                          // by row
  std::vector<std::string> pairs_{};                        // names, by number
  std::vector<std::size_t> row_pairs_{};                    // by row
  std::vector<double> pair_rows_{};                         // rows of each pair
  std::array<std::vector<Score>, kQualityKinds> scores_{};  // ascending by error
};

}  // namespace kvsim
