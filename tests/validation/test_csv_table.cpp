#include <doctest/doctest.h>

#include "models/units/error.hpp"
#include "validation/measured/csv_table.hpp"

using namespace kvsim;

namespace {

std::string complaint(std::string_view text) {
  try {
    (void)CsvTable::parse(text, "t.csv");
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("CSV: quotes, line ends, blank lines") {
  const CsvTable t = CsvTable::parse(
      "\xEF\xBB\xBF"
      "a,b\r\n1,\"x, \"\"y\"\"\nz\"\r\n\r\n,2",
      "t.csv");
  CHECK(t.columns() == std::vector<std::string>{"a", "b"});
  REQUIRE(t.rows() == 2);
  CHECK(t.text(0, 1) == "x, \"y\"\nz");
  CHECK(t.text(1, 0).empty());
  CHECK(t.line(0) == 2);
  CHECK(t.line(1) == 5);
  CHECK(t.number(1, 1, 0, 10) == 2);
  CHECK(t.has("a"));
  CHECK_FALSE(t.has("c"));
}

TEST_CASE("CSV: broken tables are reported with their place") {
  CHECK(complaint("") == "t.csv: expected a header line, got an empty file");
  CHECK(complaint("a,b,a\n1,2,3\n").find("expected one column \"a\", got several") !=
        std::string::npos);
  CHECK(complaint("a,b\n1,2\n1,2,3\n") == "t.csv:3: expected 2 cells, got 3");
  CHECK(complaint("a,b\n1,\"2\n").find("t.csv:2") != std::string::npos);
  CHECK(complaint("a,b\n1,\"2\"3\n").find("a comma after a closing quote") != std::string::npos);
  const CsvTable t = CsvTable::parse("count,b\n1e3,x\n1.5,inf\n", "t.csv");
  CHECK(t.integer(0, 0, 0, 5000) == 1000);
  CHECK_THROWS_AS((void)t.integer(1, 0, 0, 10), InputError);
  CHECK_THROWS_AS((void)t.number(0, 0, 0, 10), InputError);   // out of range
  CHECK_THROWS_AS((void)t.number(0, 1, 0, 10), InputError);   // not a number
  CHECK_THROWS_AS((void)t.number(1, 1, 0, 1e9), InputError);  // infinite
  try {
    (void)t.index("cuont");
    FAIL("a column that is not there was found");
  } catch (const InputError& e) {
    CHECK(std::string{e.what()}.find("count") != std::string::npos);  // the most similar column
  }
  CHECK_THROWS_AS((void)CsvTable::read_file("/nonexistent/t.csv"), InputError);
}
