#include "traces/requests/formats/length_pairs.hpp"

#include <algorithm>
#include <cstddef>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "models/units/error.hpp"
#include "models/units/text_file.hpp"
#include "traces/requests/formats/record_reader.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {
namespace {

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells;
  for (;;) {
    const std::size_t comma = line.find(',');
    cells.push_back(trimmed(line.substr(0, comma)));
    if (comma == std::string_view::npos) return cells;
    line.remove_prefix(comma + 1);
  }
}

std::size_t column_of(const std::vector<std::string_view>& header, std::string_view what,
                      std::initializer_list<std::string_view> names, const std::string& place) {
  for (const std::string_view name : names) {
    const auto found = std::find(header.begin(), header.end(), name);
    if (found != header.end()) return static_cast<std::size_t>(found - header.begin());
  }
  throw InputError{place, fmt::format("a column of {} lengths, \"{}\"", what, *names.begin()),
                   fmt::format("{} columns without it", header.size())};
}

std::int32_t length(std::string_view cell, std::int64_t low, std::string_view column,
                    const std::string& place) {
  const auto value = parse_whole(cell);
  if (!value || *value < low || *value > kMaxTokens) {
    throw InputError{fmt::format("{}: {}", place, column),
                     fmt::format("an integer in [{}, {}]", low, kMaxTokens), in_quotes(cell)};
  }
  return static_cast<std::int32_t>(*value);
}

}  // namespace

LengthPairs read_length_pairs(const std::filesystem::path& path) {
  expect_regular_file(path);
  std::ifstream in{path, std::ios::binary};
  if (!in) throw InputError{fmt::format("{}: cannot be read", path.string())};
  LineReader lines{in, path.string()};
  std::string_view line;
  if (!lines.next(line)) throw InputError{path.string(), "a header line", "an empty file"};
  check_text(line, lines.place());
  const std::string text{line};
  const auto header = cells_of(text);
  const std::size_t prompt =
      column_of(header, "prompt", {"prompt_tokens", "input_tokens", "input_length"}, lines.place());
  const std::size_t output =
      column_of(header, "output", {"output_tokens", "output_length"}, lines.place());
  LengthPairs pairs;
  while (lines.next(line)) {
    if (trimmed(line).empty()) continue;
    const auto cells = cells_of(line);
    if (cells.size() != header.size()) {
      throw InputError{lines.place(), fmt::format("{} columns", header.size()),
                       fmt::format("{}", cells.size())};
    }
    pairs.rows.push_back({.prompt = length(cells[prompt], 0, header[prompt], lines.place()),
                          .output = length(cells[output], 0, header[output], lines.place())});
  }
  if (pairs.rows.empty()) throw InputError{path.string(), "at least one row", "none"};
  return pairs;
}

}  // namespace kvsim
