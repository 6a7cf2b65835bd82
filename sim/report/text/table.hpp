#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace kvsim {

/// A table of left- and right-aligned columns, separated by two spaces.
class Table {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kRight;
    std::string unit{};  // under the header; on a separate line if any column has one
    bool spare = false;  // dropped, last one first, if the table is otherwise too wide
  };
  explicit Table(std::vector<Column> columns);
  /// Errors: ContractError unless there is one cell per column.
  void add_row(std::vector<std::string> cells);
  /// A heading line above the following rows, as wide as the table.
  void add_section(const std::string& heading);
  /// Lines end in "\n" without trailing spaces. If the table is wider than `width`, left columns
  /// are shortened with "…" to at least 12 columns; numbers never are. Spare columns are dropped,
  /// and a last line names them. They are dropped first if shortening would make different cells
  /// look equal; if they still would, the middles of the column's cells are cut, or the cells take
  /// several lines if that is not enough. Control characters are dropped.
  [[nodiscard]] std::string str(std::size_t width = 80) const;

 private:
  std::vector<Column> columns_;
  struct Row {
    std::vector<std::string> cells;
    std::string section;  // not empty: a heading without cells
  };
  std::vector<Row> rows_;
};

}  // namespace kvsim
