#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace kvsim {

/// One line of replay_kept.csv.
struct KeptLine {
  std::string role;
  double first = 0, last = 0, entries = 0, tokens_each = 0;
  std::optional<double> score;
};

/// Reads the lines of one stored head of the `method`-th method in the file. Errors: InputError
/// "FILE:LINE: …" if the file cannot be read or a line is malformed.
[[nodiscard]] std::vector<KeptLine> read_kept(const std::filesystem::path& file, std::size_t method,
                                              std::int64_t layer, std::int64_t head);

}  // namespace kvsim
