// The residual model: its fit, its file, and the classes in the program.

#include <cmath>
#include <set>

#include <fmt/format.h>

#include "models/cost/residuals/residuals.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"
#include "validation/residuals/fit_residuals.hpp"

namespace kvsim {
namespace {

using Path = std::vector<std::string>;

void add(std::vector<ResidualRow>& rows, const Path& path, const std::string& document,
         double first, double step, int n, double slope = 1) {
  for (int i = 0; i < n; ++i) {
    rows.push_back({.metric = "TPOT",
                    .features = path,
                    .document = document,
                    .log_ratio = first + step * i,
                    .response = Response::linear(slope)});
  }
}

const ResidualClass& class_of(const FittedResiduals& fitted, const Path& path) {
  for (const ResidualClass& c : fitted.classes) {
    if (c.path == path) return c;
  }
  throw ContractError{"no such class"};
}

TEST_CASE("the weight of a document is the square root of its number of rows") {
  std::vector<ResidualRow> rows;
  add(rows, {}, "large", -1, 0, 80);
  add(rows, {}, "small", 1, 0, 20);
  // 2 to 1.
  CHECK(class_of(fit_residuals(rows), {}).factor(0.5) == doctest::Approx(std::exp(-1.0)));
  add(rows, {}, "small too", 1, 0, 20);
  add(rows, {}, "smaller", 1, 0, 10);
  // 2 to 2.5.
  CHECK(class_of(fit_residuals(rows), {}).factor(0.5) == doctest::Approx(std::exp(1.0)));
}

TEST_CASE("two documents give the ends of an interval, and do not cover each other") {
  std::vector<ResidualRow> rows;
  add(rows, {}, "large", -1, 0, 80);
  add(rows, {}, "small", 1, 0, 20);
  const FittedResiduals fitted = fit_residuals(rows);
  // Two thirds of the weight are at -1, one third at 1: the interval reaches both.
  const ResidualClass& c = class_of(fitted, {});
  CHECK(c.factor(0.05) <= std::exp(-1.0) * (1 + 1e-9));
  CHECK(c.factor(0.95) >= std::exp(1.0) * (1 - 1e-9));
  CHECK(c.documents == 2);
  CHECK(c.rows == 100);
  // Each document is outside of the other's interval.
  CHECK(c.coverage == 0);
}

TEST_CASE("a class of many documents has a separate interval") {
  std::vector<ResidualRow> rows;
  for (int d = 0; d < 5; ++d) add(rows, {"wide"}, fmt::format("w{}", d), -1, 0.002, 1001);
  for (int d = 0; d < 20; ++d) add(rows, {"narrow"}, fmt::format("n{}", d), -0.1, 0.0002, 1001);
  const FittedResiduals fitted = fit_residuals(rows);
  const auto width = [&](const Path& path) {
    const ResidualClass& c = class_of(fitted, path);
    return c.factor(0.95) / c.factor(0.05);
  };
  CHECK(width({"narrow"}) < 0.5 * width({}));
  CHECK(class_of(fitted, {}).documents == 25);
}

TEST_CASE("a feature unrelated to errors makes no class") {
  std::vector<ResidualRow> rows;
  for (int d = 0; d < 12; ++d) {
    add(rows, {d % 2 == 0 ? "even" : "odd"}, fmt::format("d{}", d), -0.1, 0.01, 21);
  }
  CHECK(fit_residuals(rows).classes.size() == 1);
}

TEST_CASE("rows marked as separate have a separate class and change no other") {
  std::vector<ResidualRow> rows;
  for (int d = 0; d < 5; ++d) add(rows, {"wide"}, fmt::format("w{}", d), -1, 0.002, 1001);
  for (int d = 0; d < 20; ++d) add(rows, {"narrow"}, fmt::format("n{}", d), -0.1, 0.0002, 1001);
  const FittedResiduals without = fit_residuals(rows);
  for (int d = 0; d < 3; ++d) add(rows, {"narrow", "new"}, fmt::format("n{}", d), 2, 0.01, 21);
  add(rows, {"narrow", "rare"}, "n3", 5, 0.01, 21);
  for (auto row = rows.end() - 84; row != rows.end(); ++row) row->apart = row->features.back();
  const FittedResiduals fitted = fit_residuals(rows);
  REQUIRE(fitted.classes.size() == without.classes.size() + 1);
  CHECK(fitted.classes[1].path == Path{"new"});  // before "narrow": its runs match this class
  CHECK(fitted.classes[1].documents == 3);
  CHECK(fitted.classes[1].rows == 63);
  CHECK(fitted.classes[1].factor(0.95) >= std::exp(2.1));
  for (const ResidualClass& c : without.classes) {
    CHECK(class_of(fitted, c.path).quantiles == c.quantiles);
    CHECK(class_of(fitted, c.path).rows == c.rows);
  }
  // Rows from a single document form no class and have no interval.
  CHECK(fitted.left_out.back().low == 0);
  CHECK(fitted.left_out.back().high == 0);
  CHECK(fitted.left_out[rows.size() - 22].covers(2.1));
  const std::vector<ResidualRow> only(rows.end() - 84, rows.end());
  CHECK_THROWS_AS((void)fit_residuals(only), ContractError);
}

TEST_CASE("a service with states has the class of services with states, for any other features") {
  const std::string states = "layers with states or indexes";
  const Path path{"requests wait", "dense layers", "batches above 64", "vllm", states};
  for (const char* metric : {"TTFT", "TPOT", "E2E", "throughput"}) {
    INFO(metric);
    const ResidualClass* of = ResidualModel::services().find(metric, path);
    REQUIRE(of != nullptr);
    CHECK(of->path == Path{states});
    CHECK(of->documents >= 2);
  }
}

TEST_CASE("rows twice as sensitive have intervals twice as wide") {
  std::vector<ResidualRow> rows;
  for (int d = 0; d < 12; ++d) {
    add(rows, {}, fmt::format("d{}", d), -0.1 + 0.005 * d, 0.005, 21);
    add(rows, {}, fmt::format("e{}", d), -0.4 + 0.02 * d, 0.02, 21, 4);
  }
  const FittedResiduals fitted = fit_residuals(rows);
  const LeftOutEnds& once = fitted.left_out.front();
  const LeftOutEnds& more = fitted.left_out.back();
  CHECK(more.high - more.low > 2.5 * (once.high - once.low));
}

TEST_CASE("documents left out do not affect their own intervals") {
  // Six equal documents, and one far off: the others do not cover it.
  std::vector<ResidualRow> rows;
  for (int d = 0; d < 6; ++d) add(rows, {}, fmt::format("d{}", d), -0.05, 0.005, 21);
  add(rows, {}, "far", 3, 0, 20);
  const FittedResiduals fitted = fit_residuals(rows);
  CHECK_FALSE(fitted.left_out.back().covers(3));
  CHECK(fitted.left_out.front().covers(0));
  CHECK(class_of(fitted, {}).coverage < 1);
}

TEST_CASE("errors within services are separate from errors between services") {
  std::vector<ResidualRow> rows;
  for (int s = 0; s < 8; ++s) {
    add(rows, {}, fmt::format("d{}", s), -0.8 + 0.2 * s, 0.01, 5);
    for (std::size_t i = rows.size() - 5; i < rows.size(); ++i) rows[i].service = "one";
  }
  const FittedResiduals fitted = fit_residuals(rows);
  const ResidualClass& c = fitted.classes.front();
  CHECK(c.within > 0.005);
  CHECK(c.within < 0.05);
}

TEST_CASE("quantiles and shares are inverse functions, within and beyond the stored values") {
  ResidualClass c{.metric = "TPOT", .path = {}, .quantiles = {}};
  for (std::size_t i = 0; i < c.quantiles.size(); ++i) {
    c.quantiles[i] = -0.4 + 0.1 * static_cast<double>(i);
  }
  for (const double share : {0.001, 0.05, 0.2, 0.5, 0.9, 0.95, 0.999}) {
    CHECK(c.share_below(c.quantile(share)) == test::rel(share, 1e-9));
  }
  CHECK(std::abs(c.quantile(0.5)) < 1e-12);
  CHECK(c.quantile(0.999) > c.quantiles.back());
  CHECK(c.factor(0.95, Response::linear(2)) > c.factor(0.95));
}

TEST_CASE("a run has the first class with a matching word, and the words after it") {
  const std::vector<Path> paths{{}, {"vllm"}, {"one GPU"}, {"vllm", "one GPU"}, {"x", "y"}};
  using Chain = std::vector<std::size_t>;
  CHECK(class_chain(paths, Path{}) == Chain{0});
  CHECK(class_chain(paths, Path{"one GPU", "vllm"}) == Chain{0, 1, 3});
  CHECK(class_chain(paths, Path{"one GPU", "sglang"}) == Chain{0, 2});
  CHECK(class_chain(paths, Path{"x", "y"}) == Chain{0});
  CHECK(class_chain(std::vector<Path>{{"a"}}, Path{"a"}).empty());
}

void check_order(const ResidualModel& model) {
  std::set<std::pair<std::string, Path>> seen;
  REQUIRE_FALSE(model.classes().empty());
  for (const ResidualClass& c : model.classes()) {
    INFO(c.words());
    CHECK(seen.insert({c.metric, c.path}).second);
    CHECK(c.factor(0.05) <= c.factor(0.95));
    CHECK(c.within >= 0);
    // Features without a class are ignored at any position.
    Path longer = c.path;
    longer.emplace(longer.begin(), "no such feature");
    const ResidualClass* found = model.find(c.metric, longer);
    REQUIRE(found != nullptr);
    CHECK(found->metric == c.metric);
  }
}

TEST_CASE("shipped classes are in order, and every metric has a class of all runs") {
  check_order(ResidualModel::services());
  check_order(ResidualModel::static_runs());
  for (const char* metric : {"TTFT", "TTFT tail", "TPOT", "TPOT tail", "ITL", "ITL tail", "E2E",
                             "E2E tail", "throughput", "duration"}) {
    CHECK(ResidualModel::services().find(metric, {}) != nullptr);
  }
  for (const char* metric : {"prefill", "decode"}) {
    CHECK(ResidualModel::static_runs().find(metric, {}) != nullptr);
  }
  CHECK(ResidualModel::services().find("speed", {}) == nullptr);
}

TEST_CASE("an invalid residual file is refused with its place") {
  const auto complaint = [](std::string_view text) -> std::string {
    try {
      (void)read_residuals(Field::parse(text, "r.json"));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  const std::string head =
      R"({"schema": "kvsim.residuals/2", "provenance": "x", "date": "2026-01-01", "classes": )";
  const std::string good =
      R"({"metric": "TPOT", "path": ["vllm"], "quantiles": [-3, -2, -1, -0.5, 0, 0.5, 1, 2, 3],
          "floor": 0.1, "within": 0.02, "documents": 3, "rows": 9, "coverage": 0.9,
          "interval_score": 1})";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return head + "[" + text.replace(text.find(from), from.size(), to) + "]}";
  };
  const auto says = [&](const std::string& text, const char* place) {
    return complaint(text).find(place) != std::string::npos;
  };
  CHECK(complaint(head + "[" + good + "]}").empty());
  CHECK(says(R"({"schema": "x", "provenance": "x", "date": "", "classes": []})", "/schema"));
  CHECK(says(with("0.5, 1,", "0.5, -1,"), "/classes/0/quantiles/6"));
  CHECK(says(with("-3, ", ""), "/classes/0/quantiles"));
  CHECK(says(with("[\"vllm\"]", "[1]"), "/classes/0/path/0"));
  CHECK(says(with("\"rows\": 9", "\"rows\": 1.5"), "/classes/0/rows"));
  CHECK(says(with("\"rows\": 9, ", ""), "rows"));
  CHECK(says(with("\"floor\": 0.1", "\"floor\": -1"), "/classes/0/floor"));
}

}  // namespace
}  // namespace kvsim
