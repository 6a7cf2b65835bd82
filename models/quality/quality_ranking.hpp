#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/quality/quality_rows.hpp"

namespace kvsim {

/// A method's relative error in a replay, which is no score: it ranks methods at most.
struct ReplayError {
  std::string method;
  std::optional<double> kept{};          // entries, as a share of the prompt
  std::optional<double> entries{};       // a budget in entries
  double rel_error = 0.0;                // mean over all steps
  std::optional<double> answer_error{};  // of a marked trace
  std::optional<double>
      retained{};        // mean measured one of the same method and budget; by rank_replays
  std::size_t rows = 0;  // of that mean
  std::string reason{};  // why it is not compared with any row; empty: it is
};

/// How well the order of replay errors is that of measured losses: Spearman's rank correlation,
/// ties with mean ranks, over the settings that both have. nullopt for fewer than 3 of them.
struct ReplayRanking {
  bool at_answers = false;          // all have an `answer_error`: ranked by it, else by `rel_error`
  std::vector<ReplayError> errors;  // ascending
  std::size_t measured = 0;         // of them with measured scores
  std::optional<double> correlation{};
};
[[nodiscard]] ReplayRanking rank_replays(std::vector<ReplayError> errors,
                                         std::span<const QualityRow> rows);

/// Spearman's rank correlation. Errors: ContractError for series of unlike lengths.
[[nodiscard]] std::optional<double> rank_correlation(std::span<const double> a,
                                                     std::span<const double> b);

/// Methods of a result.json of `kvsim replay` (kvsim.replay/1), or of the folder that has it. A
/// budget in entries is their share of the method's `prompt_tokens`; of results without that number
/// `kept` is empty and `reason` says so.
/// Errors: InputError.
[[nodiscard]] std::vector<ReplayError> read_replay_errors(const std::filesystem::path& path);

}  // namespace kvsim
