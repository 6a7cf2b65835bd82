#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvsim {

/// A table of left- and right-aligned columns, two blanks between them.
class Table {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kRight;
    std::string unit{};  // under the header; on a separate line if any column has one
    bool spare = false;  // left out, the last first, where the table is too wide all the same
  };
  explicit Table(std::vector<Column> columns);
  /// Errors: ContractError unless there is a cell for every column.
  void add_row(std::vector<std::string> cells);
  /// A line over the rows that follow, as wide as the table.
  void add_section(const std::string& heading);
  /// Lines end in "\n" and hold no trailing blanks. Left columns are shortened with "…" as far as
  /// 12 columns where the table is wider than `width`; numbers never are, but spare columns go, and
  /// a last line names them. Spare columns go first if cells that differ would look the same.
  /// Control characters are dropped.
  [[nodiscard]] std::string str(std::size_t width = 80) const;

 private:
  std::vector<Column> columns_;
  struct Row {
    std::vector<std::string> cells;
    std::string section;  // not empty: a heading, and no cells
  };
  std::vector<Row> rows_;
};

}  // namespace kvsim
