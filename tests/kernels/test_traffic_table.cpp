// The table of docs/cuda-sim.md that compares the bytes of every kernel of the suite with the
// operator graph: it is complete, has no unknown kernels, and its tests exist.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "kernels/suite/bench/result.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream file{path};
  REQUIRE(file);
  return {std::istreambuf_iterator<char>{file}, {}};
}

/// Texts between backticks in `cell`.
std::vector<std::string> quoted(const std::string& cell) {
  std::vector<std::string> words;
  std::size_t open = cell.find('`');
  while (open != std::string::npos) {
    const std::size_t close = cell.find('`', open + 1);
    REQUIRE(close != std::string::npos);
    words.push_back(cell.substr(open + 1, close - open - 1));
    open = cell.find('`', close + 1);
  }
  return words;
}

std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> cells;
  for (std::size_t begin = 1, end = line.find('|', 1); end != std::string::npos;
       begin = end + 1, end = line.find('|', begin)) {
    cells.push_back(line.substr(begin, end - begin));
  }
  return cells;
}

struct Row {
  std::string operators, beyond;
  std::vector<std::string> tests;
};

/// By kernel; one row may list several.
std::map<std::string, Row> rows_of(const std::string& document) {
  std::map<std::string, Row> rows;
  std::size_t at = document.find("## Bytes compared with the operator graph");
  REQUIRE(at != std::string::npos);
  const std::size_t end = document.find("\n## ", at + 1);
  bool in_table = false;
  while (at < end) {
    const std::size_t stop = std::min(document.find('\n', at), end);
    const std::string line = document.substr(at, stop - at);
    at = stop + 1;
    if (line.starts_with("|---")) in_table = true;
    if (!in_table || !line.starts_with("| `")) continue;
    const auto cells = cells_of(line);
    INFO(line);
    REQUIRE(cells.size() == 4);
    for (const std::string& kernel : quoted(cells[0])) {
      INFO(kernel);
      CHECK(rows.count(kernel) == 0);
      rows[kernel] = {cells[1], cells[2], quoted(cells[3])};
    }
  }
  return rows;
}

TEST_CASE("the table of bytes lists every kernel of the suite and only existing tests") {
  const fs::path root{KVSIM_SOURCE_DIR};
  const auto rows = rows_of(text_of(root / "docs" / "cuda-sim.md"));
  const std::vector<std::string> suite = kernels::suite_kernels();
  for (const std::string& kernel : suite) {
    INFO(kernel, " is in the suite: its row compares its bytes with the operator graph");
    CHECK(rows.count(kernel) == 1);
  }
  std::string tests;
  for (const char* folder : {"tests/kernels", "tests/validation"}) {
    for (const auto& entry : fs::directory_iterator{root / folder}) {
      if (entry.path().extension() == ".cpp") tests += text_of(entry.path());
    }
  }
  for (const auto& [kernel, row] : rows) {
    INFO(kernel);
    CHECK(std::find(suite.begin(), suite.end(), kernel) != suite.end());
    CHECK(row.operators.size() > 2);
    CHECK(row.beyond.size() > 2);
    CHECK_FALSE(row.tests.empty());
    for (const std::string& test : row.tests) {
      INFO(test);
      CHECK(tests.find("TEST_CASE(\"" + test + "\")") != std::string::npos);
    }
  }
}

}  // namespace
}  // namespace kvsim
