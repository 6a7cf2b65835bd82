#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// A CSV file with a header line, read whole (RFC 4180: quoted fields may hold commas, quotes and
/// line ends; lines end in LF or CRLF; blank lines are skipped).
class CsvTable {
 public:
  /// Errors: InputError "FILE:LINE: …" for a missing header, a repeated column, an unterminated
  /// quote, a row with a different number of fields, or a file that cannot be read or is larger
  /// than 1 GiB.
  [[nodiscard]] static CsvTable read_file(const std::filesystem::path& path);
  [[nodiscard]] static CsvTable parse(std::string_view text, std::string place);

  [[nodiscard]] const std::string& place() const { return place_; }
  [[nodiscard]] const std::vector<std::string>& columns() const { return columns_; }
  [[nodiscard]] std::size_t rows() const { return lines_.size(); }
  [[nodiscard]] bool has(std::string_view column) const;
  /// Errors: InputError that names the most similar column.
  [[nodiscard]] std::size_t index(std::string_view column) const;

  [[nodiscard]] const std::string& text(std::size_t row, std::size_t column) const {
    return cells_[row * columns_.size() + column];
  }
  /// Number in a cell. Errors: InputError "FILE:LINE: column: expected a number in [low, high], got
  /// …".
  [[nodiscard]] double number(std::size_t row, std::size_t column, double low, double high) const;
  [[nodiscard]] std::int64_t integer(std::size_t row, std::size_t column, std::int64_t low,
                                     std::int64_t high) const;
  [[nodiscard]] std::size_t line(std::size_t row) const { return lines_[row]; }

 private:
  std::string place_;
  std::vector<std::string> columns_;
  std::vector<std::string> cells_;
  std::vector<std::size_t> lines_;  // line of the file, from 1, on which a row begins
};

}  // namespace kvsim
