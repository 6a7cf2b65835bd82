// The residual model of services: its fit, and its file.

#include <cmath>

#include "models/cost/residuals/residuals.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "validation/residuals/fit_residuals.hpp"

namespace kvsim {
namespace {

ResidualKey key_of(std::string stack) { return {.metric = "ttft", .stack = std::move(stack)}; }

void add(std::vector<ResidualRow>& rows, const std::string& stack, const std::string& document,
         double first, double step, int n) {
  for (int i = 0; i < n; ++i) {
    rows.push_back({.key = key_of(stack), .document = document, .log_ratio = first + step * i});
  }
}

const ResidualClass& class_of(const std::vector<ResidualClass>& classes, const ResidualKey& key) {
  for (const ResidualClass& c : classes) {
    if (c.key == key) return c;
  }
  throw ContractError{"no such class"};
}

TEST_CASE("rows of one document weigh as much as twenty of another") {
  std::vector<ResidualRow> rows;
  add(rows, "a", "large", -1, 0, 1000);
  add(rows, "a", "small", 1, 0, 20);
  const auto classes = fit_residuals(rows);
  // Half of the weight is at -1, half at 1: both ends are reached.
  const ResidualClass& c = class_of(classes, key_of("a"));
  CHECK(c.low == test::rel(std::exp(-1.0)));
  CHECK(c.high == test::rel(std::exp(1.0)));
  CHECK(c.documents == 2);
  CHECK(c.rows == 1020);
  // Each document is outside of the other's interval.
  CHECK(c.coverage == 0);
}

TEST_CASE("a class of many documents has a separate interval") {
  std::vector<ResidualRow> rows;
  add(rows, "other", "wide", -2, 0.004, 1001);
  for (int d = 0; d < 20; ++d) add(rows, "a", "d" + std::to_string(d), -0.1, 0.0002, 1001);
  const auto classes = fit_residuals(rows);
  const ResidualClass& narrow = class_of(classes, key_of("a"));
  CHECK(narrow.high < 1.2);  // its own end is exp(0.1)
  CHECK(narrow.low > 0.8);
  CHECK(narrow.coverage > 0.85);
  CHECK(narrow.coverage <= 1);
}

TEST_CASE("the class of all stacks has every document") {
  std::vector<ResidualRow> rows;
  add(rows, "a", "x", 0, 0.1, 5);
  add(rows, "b", "y", 0, 0.1, 5);
  const ResidualClass all = class_of(fit_residuals(rows), key_of(""));
  CHECK(all.documents == 2);
  CHECK(all.rows == 10);
}

TEST_CASE("classes shipped with the program are valid") {
  const ServiceResiduals& known = ServiceResiduals::builtin();
  for (const ResidualClass& c : known.classes()) {
    INFO(c.key.words());
    CHECK(c.low <= c.high);
    CHECK(c.low > 0);
    CHECK(known.find(c.key) == &c);
  }
  REQUIRE_FALSE(known.classes().empty());
  // A stack without a class has that of all stacks.
  const ResidualKey unknown = key_of("no such stack");
  const ResidualClass* found = known.find(unknown);
  REQUIRE(found != nullptr);
  CHECK(found->key.stack.empty());
}

TEST_CASE("a wrong residual file is refused by place") {
  const auto complaint = [](std::string_view text) -> std::string {
    try {
      (void)read_residuals(Field::parse(text, "r.json"));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const std::string head =
      R"({"schema": "kvsim.residuals/1", "provenance": "x", "date": "2026-01-01", "classes": )";
  const std::string good =
      R"({"metric": "tpot", "stack": "vllm", "complete": true, "queued": false,
          "low": 0.8, "high": 1.2, "documents": 3, "rows": 9, "coverage": 0.9, "interval_score": 1})";
  const auto with = [&](std::string from, const std::string& to) {
    std::string text = good;
    return head + "[" + text.replace(text.find(from), from.size(), to) + "]}";
  };
  CHECK(complaint(head + "[" + good + "]}").empty());
  CHECK(complaint(R"({"schema": "x", "provenance": "x", "date": "", "classes": []})")
            .find("/schema") != std::string::npos);
  CHECK(complaint(with("\"high\": 1.2", "\"high\": 0.1")).find("/classes/0/high") !=
        std::string::npos);
  CHECK(complaint(with("\"low\": 0.8", "\"low\": 0")).find("/classes/0/low") != std::string::npos);
  CHECK(complaint(with("tpot", "speed")).find("/classes/0/metric") != std::string::npos);
  CHECK(complaint(with("\"rows\": 9", "\"rows\": 1.5")).find("/classes/0/rows") !=
        std::string::npos);
  CHECK(complaint(with("\"rows\": 9, ", "")).find("rows") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
