#pragma once

// Plain text for the terminal.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "sim/report/results_folder.hpp"
#include "sim/report/run_report.hpp"
#include "sim/report/text.hpp"
#include "sim/report/text_style.hpp"

namespace kvsim {

/// A table of left- and right-aligned columns, two blanks between them.
class Table {
 public:
  enum class Align : std::uint8_t { kLeft, kRight };
  struct Column {
    std::string header;
    Align align = Align::kRight;
    std::string unit{};  // under the header; a line of its own where any column has one
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

/// "full: out of memory at decode step 33,912 (53,912 tokens): asked 842 MiB, 310 MiB free; weights
/// 25.1 GiB, …", owners by size.
[[nodiscard]] std::string oom_sentence(std::string_view label, const OomEvent& oom);

/// "8 of 9 points fit (usable HBM 79.0 GiB).", then a line for each that does not, the
/// shortest-lived first. `labels`: of each point.
[[nodiscard]] std::string static_verdict(const RunReport& report,
                                         const std::vector<std::string>& labels,
                                         const TextStyle& style = {});

/// What a run of `document` (run_document) says on the terminal: a line that names it, the table of
/// its points, what fits and what fails first and why, published figures beside the predicted, the
/// replay's table, notes, and where files are (`written` null: nothing was).
[[nodiscard]] std::string run_summary(const RunReport& report,
                                      const nlohmann::ordered_json& document,
                                      const ResultsFolder* written, std::size_t width = 80);
/// The table of a replay: entries, bytes against full, error, closed form.
[[nodiscard]] std::string replay_summary(const ReplayResult& replay,
                                         const std::vector<SkippedMethod>& skipped,
                                         const ResultsFolder* written, std::size_t width = 80);

/// What several traces say together (`written` as above).
[[nodiscard]] std::string aggregate_summary(const std::vector<ReplayResult>& replays,
                                            const ResultsFolder* written, std::size_t width = 80);

}  // namespace kvsim
