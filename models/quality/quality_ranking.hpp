#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/quality/quality_rows.hpp"

namespace kvsim {

/// A method's relative error in a replay. It is not a task score; it can only rank methods.
struct ReplayError {
  std::string method;
  std::optional<double> kept{};          // entries, as a share of the prompt
  std::optional<double> entries{};       // budget in entries
  double rel_error = 0.0;                // mean over all steps
  std::optional<double> answer_error{};  // for a marked trace
  std::optional<double>
      retained{};        // mean measured score for the same method and budget; set by rank_replays
  std::size_t rows = 0;  // rows of that mean
  std::string reason{};  // why there is no row to compare with; empty if there is one
};

/// Agreement between the order of replay errors and the order of measured losses: Spearman's rank
/// correlation with mean ranks for ties, over the settings in both. nullopt for fewer than 3
/// settings.
struct ReplayRanking {
  bool at_answers = false;          // ranked by `answer_error`, which all have, not `rel_error`
  std::vector<ReplayError> errors;  // ascending
  std::size_t measured = 0;         // number of them with measured scores
  std::optional<double> correlation{};
};
[[nodiscard]] ReplayRanking rank_replays(std::vector<ReplayError> errors,
                                         std::span<const QualityRow> rows);

/// Spearman's rank correlation. Throws ContractError if the lengths differ.
[[nodiscard]] std::optional<double> rank_correlation(std::span<const double> a,
                                                     std::span<const double> b);

/// Reads the methods of a result.json of `kvsim replay` (kvsim.replay/1), or of its folder. A
/// budget in entries is converted to a fraction of the method's `prompt_tokens`; without that
/// number `kept` is empty and `reason` explains why.
/// Throws InputError.
[[nodiscard]] std::vector<ReplayError> read_replay_errors(const std::filesystem::path& path);

}  // namespace kvsim
