// Statistics of several replays: means, the oracle, the Pareto front.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "models/math/student_t.hpp"
#include "models/units/error.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/replay/error_figures.hpp"
#include "sim/report/replay/replay_aggregate.hpp"
#include "sim/report/replay/replay_csv.hpp"
#include "sim/report/replay/replay_json.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

TEST_CASE("a spread by hand") {
  // 1, 2, 6: mean 3, squares 4 + 1 + 9 over 2 = 7; t of 2 degrees is 4.303.
  const Spread spread = spread_of({1, 2, 6});
  CHECK(spread.n == 3);
  CHECK(spread.mean == 3);
  CHECK(*spread.sd == test::rel(std::sqrt(7.0)));
  CHECK(*spread.high == test::rel(3 + 4.303 * std::sqrt(7.0 / 3)));
  CHECK(*spread.low == test::rel(3 - 4.303 * std::sqrt(7.0 / 3)));
  const Spread one = spread_of({0.5});
  CHECK(one.mean == 0.5);
  CHECK_FALSE(one.sd.has_value());
  CHECK_FALSE(one.low.has_value());
  CHECK_THROWS((void)spread_of({}));
  // The table agrees with the expansion used beyond it, and both approach the normal value, 1.96.
  CHECK(student_t_975(30) == 2.042);
  CHECK(student_t_975(31) == doctest::Approx(2.0395).epsilon(1e-4));
  CHECK(student_t_975(120) == doctest::Approx(1.9799).epsilon(1e-4));
  CHECK(student_t_975(1000000) == doctest::Approx(1.95996).epsilon(1e-5));
  for (std::int64_t v = 1; v < 200; ++v) CHECK(student_t_975(v) > student_t_975(v + 1));
}

TEST_CASE("a mean over fewer traces than its neighbours' says so in the figure") {
  const auto row = [](const std::string& name, std::vector<std::string> traces, double error) {
    AggregateRow out;
    out.name = name;
    out.budget = 0.2;
    out.traces = std::move(traces);
    out.rel_error = spread_of({error});
    out.bytes_share = out.read_share = spread_of({0.2});
    return out;
  };
  const FigureSet set =
      aggregate_figures({row("h2o", {"a", "b", "c"}, 0.1), row("chunkkv", {"a", "c"}, 0.2)},
                        {"small model", "small model", "large model"});
  REQUIRE(set.figures.size() == 1);
  CHECK(set.figures[0].csv.find("chunkkv (2 of 3)") != std::string::npos);
  CHECK(set.figures[0].csv.find("h2o (") == std::string::npos);
  CHECK(set.figures[0].title.find("means over 3 traces (small model; large model)") !=
        std::string::npos);
  CHECK(sources_words({"a", "b", "a", "c", "d"}) == "a; b; and 2 more");
}

ReplayResult with_oracle() {
  ReplayResult replay = test::sample_replay();
  ReplayMethod oracle = replay.methods[2];
  oracle.name = "oracle-step";
  oracle.rel_error_mean = 0.04;
  oracle.retained_mass_mean = 0.99;
  replay.methods.push_back(oracle);
  return replay;
}

TEST_CASE("distance from the oracle at the same budget, as a share of the oracle's mass") {
  ReplayResult replay = with_oracle();
  const auto gap = [&](std::size_t m) { return oracle_gap(replay, replay.methods[m]); };
  CHECK_FALSE(gap(0).mass.has_value());  // full: no budget
  CHECK_FALSE(gap(1).mass.has_value());  // zeromerge retains no mass
  CHECK(*gap(1).error_ratio == test::rel(replay.methods[1].rel_error_mean / 0.04));
  CHECK(*gap(2).mass == test::rel(0.99 - *replay.methods[2].retained_mass_mean));
  CHECK(*gap(4).mass == 0);
  CHECK(*gap(4).error_ratio == 1);
  const auto document = replay_document(replay);
  CHECK(document.at("methods").at(2).at("oracle_mass_gap").get<double>() == *gap(2).mass);
  CHECK(document.at("methods").at(0).at("oracle_error_ratio").is_null());
  replay.methods[4].budget = 0.4;
  CHECK_FALSE(gap(2).mass.has_value());
}

TEST_CASE("an aggregate has a row per method and budget over the traces it ran on") {
  ReplayResult a = with_oracle();
  ReplayResult b = with_oracle();
  for (ReplayMethod& m : a.methods) m.bytes_full_read_total = 4e6;
  for (ReplayMethod& m : b.methods) m.bytes_full_read_total = 4e6;
  b.trace = "other";
  b.methods.erase(b.methods.begin() + 3);
  b.methods[2].rel_error_mean *= 3;
  const auto rows = aggregate({a, b});
  REQUIRE(rows.size() == 5);
  CHECK(rows[2].name == "h2o");
  CHECK(rows[2].traces == std::vector<std::string>{"books-treasure-512", "other"});
  CHECK(rows[2].rel_error->mean == test::rel(2 * a.methods[2].rel_error_mean));
  CHECK(rows[2].rel_error->n == 2);
  CHECK(rows[3].traces.size() == 1);
  CHECK_FALSE(rows[1].retained_mass.has_value());
  CHECK(rows[2].retained_mass->mean == test::rel(*a.methods[2].retained_mass_mean));
  CHECK(rows[2].oracle_error_ratio->mean == test::rel(rows[2].rel_error->mean / 0.04));
  const auto json = aggregate_json(rows);
  CHECK(json.at(3).at("rel_error").at("sd").is_null());
  CHECK(json.at(1).at("retained_mass").is_null());
  CHECK(json.at(2).at("budget") == 0.2);
  const std::string csv = aggregate_csv(rows);
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 6);
  const auto commas = std::count(csv.begin(), csv.end(), ',');
  CHECK(commas == 6 * (2 + 8 * 4));  // every line has the same number of fields
  CHECK(aggregate({}).empty());
  CHECK(aggregate_table(rows, 80).find("oracle-step") != std::string::npos);
}

TEST_CASE("an aggregate of errors that are not numbers has no number in its table") {
  ReplayResult a = with_oracle();
  ReplayResult b = with_oracle();
  for (ReplayMethod& m : a.methods) m.bytes_full_read_total = 4e6;
  for (ReplayMethod& m : b.methods) m.bytes_full_read_total = 4e6;
  b.trace = "other";
  b.methods[2].rel_error_mean = std::numeric_limits<double>::quiet_NaN();
  const auto rows = aggregate({a, b});
  const std::string table = aggregate_table(rows, 80);
  CHECK(table.find("nan") == std::string::npos);
  const std::size_t at = table.find("h2o");
  REQUIRE(at != std::string::npos);
  const std::string line = table.substr(at, table.find('\n', at) - at);
  CHECK(line.find(" -  ") != std::string::npos);
  CHECK(aggregate_json(rows).at(2).at("rel_error").at("mean").is_null());
  CHECK(aggregate_csv(rows).find("nan") == std::string::npos);
}

TEST_CASE("the Pareto front by hand") {
  const std::vector<MarkGroup> groups{
      {.label = "a", .points = {{0.1, 0.5}, {0.3, 0.2}}},
      {.label = "b", .points = {{0.2, 0.5}, {0.3, 0.3}, {0.5, 0.2}, {0.6, 0.1}}},
      {.label = "oracle", .points = {{0.05, 0.01}}, .reference = true}};
  const auto front = pareto_front(groups);
  REQUIRE(front.size() == 3);
  CHECK(front[0].x == 0.1);
  CHECK(front[1].x == 0.3);
  CHECK(front[1].y == 0.2);
  CHECK(front[2].x == 0.6);
}

TEST_CASE("error against bytes: one mark per method, exact methods as text, traffic for readers") {
  FigureSet set;
  std::vector<ErrorMark> marks{{.method = "full", .error = 1e-8, .held = 1, .read = 1},
                               {.method = "h2o", .error = 0.1, .held = 0.2, .read = 0.3}};
  add_error_figures(marks, "x", set);
  CHECK(set.figures.empty());  // a single mark is not drawn
  marks.push_back({.method = "h2o", .error = 0.05, .held = 0.4, .read = 0.5});
  add_error_figures(marks, "x", set);
  REQUIRE(set.figures.size() == 1);
  CHECK(set.figures[0].kind == "error_vs_bytes");
  CHECK(set.figures[0].csv ==
        "series,bytes_share,rel_error_mean,on_front,label\n0,0.2,0.1,1,h2o\n0,0.4,0.05,1,h2o\n");
  CHECK(set.figures[0].script.find("error below 0.00001: full") != std::string::npos);
  marks.push_back({.method = "quest", .error = 0.2, .held = 1.1, .read = 0.2, .reads_part = true});
  set.figures.clear();
  add_error_figures(marks, "x", set);
  REQUIRE(set.figures.size() == 2);
  CHECK(set.figures[1].kind == "error_vs_read");
  CHECK(set.figures[0].csv.find("1,1.1,0.2,0,quest") != std::string::npos);
  CHECK(set.figures[1].csv.find("1,0.2,0.2,1,quest") != std::string::npos);
  // A bound that holds all entries is drawn at its reads and does not change other methods' style.
  marks.insert(
      marks.begin(),
      {.method = "oracle-step", .error = 0.01, .held = 1, .read = 0.1, .reads_part = true});
  set.figures.clear();
  add_error_figures(marks, "x", set);
  REQUIRE(set.figures.size() == 2);
  CHECK(set.figures[0].csv.find("oracle-step") == std::string::npos);
  CHECK(set.figures[1].csv.find("oracle-step") != std::string::npos);
  const auto look = [&](std::size_t figure, const std::string& method) {
    const std::string& script = set.figures[figure].script;
    const std::size_t at = script.find("title '" + method + "'");
    REQUIRE(at != std::string::npos);
    const std::size_t line = script.rfind('\n', at);
    return script.substr(line + 1, at - line);
  };
  for (const char* method : {"h2o", "quest"}) CHECK(look(0, method) == look(1, method));
  CHECK(look(0, "h2o") != look(0, "quest"));
  for (int i = 0; i < 30; ++i) {  // more than a legend can hold
    marks.push_back({.method = "m" + std::to_string(i), .error = 0.3, .held = 2, .read = 2});
  }
  set.figures.clear();
  add_error_figures(marks, "x", set);
  CHECK(set.figures[0].script.find("more, not on the Pareto front") != std::string::npos);
}

TEST_CASE("one row per method with as many fields as columns") {
  const std::string csv = replay_methods_csv(with_oracle());
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 6);
  CHECK(std::count(csv.begin(), csv.end(), ',') == 6 * 18);
}

}  // namespace
}  // namespace kvsim
