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
  std::string source{};  // publisher of the score; only scores of the same source are compared
  std::string model, task{}, metric{}, method, setting, when, context, note{};
  std::optional<double> budget{};  // in budget_unit
  std::string budget_unit{};       // "fraction", "tokens", "fraction of bytes", ""
  std::optional<double> bits{};    // per stored element
  double score = 0.0;
  std::optional<double> score_full{};  // of the same source's full cache
  std::optional<double> stderr_points{};
  std::optional<double> samples{};
  double max_score = 100.0;  // for fractions: 1 if no score of this metric in the source exceeds 1

  /// Returns score over full score; for a perplexity, where lower is better, the inverse. nullopt
  /// without a full score above 0, and for a perplexity of 0.
  [[nodiscard]] std::optional<double> retained() const;
  /// Returns the standard error of retained(), with the full score taken as exact: the stated one,
  /// or for accuracies the binomial one of the samples, on the scale 0..max_score; nullopt if
  /// neither is known.
  [[nodiscard]] std::optional<double> retained_stderr() const;
  /// Returns bytes kept over bytes of a 16-bit cache of all tokens; nullopt if the budget is in
  /// tokens and the prompt length is unknown, or if neither budget nor bits are stated.
  [[nodiscard]] std::optional<double> kept_bytes() const;
  /// Returns the repository or paper: the source up to its first blank, without a commit.
  [[nodiscard]] std::string harness() const;
  [[nodiscard]] bool is_full() const { return method == "full"; }
};

/// Parses a CSV file (RFC 4180; columns by name, in any order: `model`, `task`, `method`, `score`,
/// `score_full` are required; `source`, `metric`, `method_as_published`, `budget`, `budget_unit`,
/// `bits`, `when`, `context_tokens`, `n_samples`, `stderr`, `note` are optional, others are
/// ignored). Throws InputError "FILE:LINE: COLUMN: expected ..., got ...".
[[nodiscard]] std::vector<QualityRow> parse_quality_csv(std::string_view text,
                                                        std::string_view name);

/// Reads a CSV file, or a kvpress results folder: DATASET__DATA__MODEL__PRESS__RATIO as a folder
/// with metrics.json, or as a file NAME.json. The full scores are those of `no_press` or of the
/// ratio 0 for the same data and model.
/// Throws InputError for anything else, and for a folder without results.
[[nodiscard]] std::vector<QualityRow> read_quality(const std::filesystem::path& path);

}  // namespace kvsim
