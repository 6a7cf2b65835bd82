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

/// What a method changes; a prediction rests on measurements of the same kind only.
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

/// Score over full score as predicted from other measurements.
struct QualityPrediction {
  double retained = 1.0;
  double spread = 0.0;     // deviation of the measurements that it rests on
  bool supported = false;  // the method was measured under this protocol with another model
  std::optional<double> low{}, high{};  // holds 90 % of scores; where there is evidence enough
  std::size_t rows = 0, models = 0;     // measurements of the same method
};

/// Who is left out when a row is predicted.
enum class LeaveOut : std::uint8_t { kPair, kModel };

/// Errors of predictions whose measurements were left out, of supported rows.
struct LeaveOutError {
  std::size_t rows = 0, pairs = 0;
  std::size_t unsupported = 0;  // rows of methods that nothing else supports
  std::size_t bounded = 0;      // rows with an interval
  std::optional<double> mean_absolute{}, median_absolute{}, bias{};
  std::optional<double> coverage{}, mean_width{};  // of those with an interval
};

/// A kernel mean over measured rows: every difference between two set-ups costs a factor
/// (docs/quality.md lists them); the interval is that of errors when a model is
/// left out, in units of the spread, by kind. The factors are fixed numbers; nothing is fitted to
/// the rows but the interval.
class QualityModel {
 public:
  /// Rows without a retained score and full caches are left out.
  explicit QualityModel(std::span<const QualityRow> rows);

  ~QualityModel();

  /// Of `query`, whose score is not used. nullopt: nothing of its kind was measured.
  [[nodiscard]] std::optional<QualityPrediction> predict(const QualityRow& query) const;
  /// The same without measurements of the query's (harness, model) pair, or of its model too.
  [[nodiscard]] std::optional<QualityPrediction> predict_without(const QualityRow& query,
                                                                 LeaveOut out) const;
  /// Errors of predictions of each row without its pair, or its model too; the interval of a row is
  /// calibrated without its model.
  [[nodiscard]] LeaveOutError leave_out_error(LeaveOut out, QualityKind kind) const;
  /// Errors of predictions of other rows.
  [[nodiscard]] LeaveOutError error_of(std::span<const QualityRow> rows, QualityKind kind) const;

 private:
  static constexpr std::size_t kNoPair = static_cast<std::size_t>(-1);
  struct Score {  // of a row whose model was left out of every harness
    std::size_t pair;
    std::string_view model;
    double error;  // in units of the spread
  };
  struct Evidence;
  template <class Query, class Skip>
  [[nodiscard]] std::optional<QualityPrediction> mean(const Query& query, Skip skip) const;
  [[nodiscard]] std::optional<QualityPrediction> mean_of(std::size_t row, LeaveOut out) const;
  /// Adds the interval from the scores of the kind, without those of `model`.
  void add_interval(QualityPrediction& p, QualityKind kind, std::string_view model) const;

  std::unique_ptr<Evidence> evidence_;
  std::vector<double> retained_{};                          // by row
  std::vector<std::string> pairs_{};                        // names, by number
  std::vector<std::size_t> row_pairs_{};                    // by row
  std::vector<double> pair_rows_{};                         // rows of each pair
  std::array<std::vector<Score>, kQualityKinds> scores_{};  // ascending by error
};

}  // namespace kvsim
