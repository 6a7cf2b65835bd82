#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/methods/axes.hpp"
#include "models/methods/view/prompt_scores.hpp"

namespace kvsim {

struct LogitAverageSettings {
  bool rows = false;        // mean of the last `window` rows; otherwise a moving average
  double keep = 0.9;        // alpha of the moving average
  std::int32_t window = 8;  // w: the prompt's last w + 1 rows are averaged; rows: R
  [[nodiscard]] std::int32_t prompt_rows() const { return rows ? window : window + 1; }
  /// Bytes carried per entry: average and age, or R numbers.
  [[nodiscard]] Bytes entry_bytes() const { return Bytes{rows ? 4LL * window : 8LL}; }
};

/// Average over decode steps of s = e^(scale q.k), the unnormalised exponential of each entry of
/// one stored head. With grouped queries, s is the mean over the group (KeepKV, eq. (8)).
///
///   S <- alpha S + (1 - alpha) s,   s' = S / (1 - alpha^age)
///
/// `age` is the entry's number of samples (our choice: with the published correction 1 - alpha^t no
/// entry's weights sum to 1). The released code instead keeps the last R rows and uses their mean
/// plus the smallest normal fp16 number. All averages are stored as logarithms, because logits of
/// two entries or steps may differ by thousands.
class LogitAverage {
 public:
  LogitAverage(const LogitAverageSettings& settings, std::int32_t group, std::int32_t tokens);

  /// Returns the position of the first prompt row that is used.
  [[nodiscard]] std::int64_t first_row(std::int64_t prompt) const;
  /// Adds a row of the prompt at or after first_row; positions ascending, query heads in order.
  void learn_row(const PromptScores::Row& row);
  /// Adds all such rows of head `head`.
  void learn_prompt(const PromptScores& scores, std::size_t head);
  void observe(const HeadStep& step, std::int32_t newest);

  /// Returns ln s' of the entry `id`.
  [[nodiscard]] double log_mean(std::int32_t id) const;
  /// Merges the entries `from` into `into`. `votes` [1 + from.size()]: the votes of `into`, then of
  /// each entry in `from`. The ln s' of `into` becomes `log_score`; its age does not change.
  void merge(std::int32_t into, std::span<const std::int32_t> from, std::span<const double> votes,
             double log_score);

 private:
  /// The last R samples of an entry as logarithms, in a ring indexed by position modulo R. Their
  /// sum is e^peak * sum.
  struct Rows {
    std::vector<double> log_samples;
    double peak = 0, sum = 0;
    double max = 0;  // the largest `sum` since the last full summation
    void resum();
  };
  [[nodiscard]] static std::size_t index(std::int32_t id) { return static_cast<std::size_t>(id); }
  [[nodiscard]] double log_correction(std::int32_t id) const;
  [[nodiscard]] std::int32_t rows_averaged(std::int32_t id) const;
  void take(std::int32_t id, double log_sample, std::int64_t t);
  void take_row(Rows& rows, double log_sample, std::int64_t t);
  void drop_rows_of_gone(const EntryTable& entries);

  LogitAverageSettings settings_;
  std::int32_t group_;
  double log_keep_, log_take_, log_group_;  // ln of alpha, of 1 - alpha, of the group's size
  std::vector<std::int32_t> age_;           // by id
  std::vector<double> log_average_;         // by id: ln S
  std::vector<double> log_corrections_;     // ln 1 / (1 - alpha^age), by age; 0 beyond the end
  std::vector<Rows> rows_;                  // rows: by id
  std::vector<std::vector<double>> spare_;
  std::vector<double> log_sample_;
};

}  // namespace kvsim
