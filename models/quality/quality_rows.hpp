#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// One measured task score under a compressed cache.
struct QualityRow {
  std::string place;     // "FILE:LINE", or the file of a results folder
  std::string source{};  // who measured it; scores are compared within a source only
  std::string model, task{}, metric{}, method, setting, when, context, note{};
  std::optional<double> budget{};  // what is kept, in budget_unit
  std::string budget_unit{};       // "fraction", "tokens", "fraction of bytes", ""
  std::optional<double> bits{};    // of a stored element
  double score = 0.0;
  std::optional<double> score_full{};  // of the same source's full cache
  std::optional<double> stderr_points{};
  std::optional<double> samples{};
  double max_score = 100.0;  // of a share: 1 if the source has no score of the metric above 1

  /// Score over full score; of a perplexity, where lower is better, the inverse. nullopt without a
  /// full score above 0, and for a perplexity of 0.
  [[nodiscard]] std::optional<double> retained() const;
  /// Standard error of retained(), the full score taken as exact: the stated one, else of
  /// accuracies the binomial one of the samples, on the scale 0..max_score; nullopt where neither
  /// is known.
  [[nodiscard]] std::optional<double> retained_stderr() const;
  /// Bytes kept over bytes of a 16-bit cache of every token; nullopt where the budget is in tokens
  /// of prompts of unknown length, and where neither budget nor bits are stated.
  [[nodiscard]] std::optional<double> kept_bytes() const;
  /// The repository or paper: the source up to its first blank, without a commit.
  [[nodiscard]] std::string harness() const;
  [[nodiscard]] bool is_full() const { return method == "full"; }
};

/// Rows of a CSV file (RFC 4180; columns by name, in any order: `model`, `task`, `method`, `score`,
/// `score_full` are required; `source`, `metric`, `method_as_published`, `budget`, `budget_unit`,
/// `bits`, `when`, `context_tokens`, `n_samples`, `stderr`, `note` are optional, others passed
/// over). Errors: InputError "FILE:LINE: COLUMN: expected ..., got ...".
[[nodiscard]] std::vector<QualityRow> parse_quality_csv(std::string_view text,
                                                        std::string_view name);

/// Rows of a CSV file, or of a kvpress results folder: DATASET__DATA__MODEL__PRESS__RATIO as a
/// folder with metrics.json, or as a file NAME.json; the full scores are those of `no_press` or of
/// the ratio 0 of the same data and model.
/// Errors: InputError for what is neither, and for a folder without results.
[[nodiscard]] std::vector<QualityRow> read_quality(const std::filesystem::path& path);

}  // namespace kvsim
