#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvsim {

/// A task: tokens to read and the expected tokens that follow.
struct LoopPrompt {
  std::string task;  // name of a group of tasks; may be empty
  std::vector<std::int32_t> tokens, answer;
  std::optional<std::int64_t> question_start;  // index into tokens
  /// First tokens of chunks that are computed separately, ascending from 0. The last chunk ends at
  /// the question, or with the prompt. Empty if the prompt is not divided.
  std::vector<std::int64_t> chunks;
};

/// Reads a JSONL file, one object per line: `tokens` and `answer` (arrays of token ids below
/// `vocab`), and optionally `task`, `question_start` and `chunks`. Empty lines are skipped. Errors:
/// InputError "FILE:LINE: …" for anything else, for prompts longer than `max_tokens` with their
/// answer, and for a file without prompts.
[[nodiscard]] std::vector<LoopPrompt> read_prompts(const std::filesystem::path& file,
                                                   std::int64_t vocab, std::int64_t max_tokens);

}  // namespace kvsim
