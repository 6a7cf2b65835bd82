#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

namespace kvsim {

/// Pairs of prompt and output lengths, as rows of a file of measured lengths.
struct LengthPairs {
  struct Pair {
    std::int32_t prompt = 0, output = 0;  // tokens
  };
  std::vector<Pair> rows{};  // not empty; each is equally likely
};

/// Reads a CSV file with a column of prompts (prompt_tokens, input_tokens or input_length) and one
/// of outputs (output_tokens or output_length), both at least 0; ignores other columns. Errors:
/// InputError with file, line and column.
[[nodiscard]] LengthPairs read_length_pairs(const std::filesystem::path& path);

}  // namespace kvsim
