// A figure's document reproduces it byte for byte, passes only values and quoted texts to gnuplot
// for any content, and can be overlaid with figures of other results.

#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/report/chart/figure_document.hpp"
#include "sim/report/chart/figure_overlay.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/figure/figure.hpp"
#include "sim/report/figure/figure_style.hpp"
#include "sim/report/replay/replay_figures.hpp"
#include "sim/report/run/run_figures.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/sim/serve/serve_samples.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

StoredFigure stored(const std::string& text, std::set<std::string>& words) {
  return read_figure(Field::parse(text, "f.figure.json"), words);
}

/// One chart of each kind, with all optional parts.
std::vector<Figure> every_kind() {
  LineChart lines{.name = "lines",
                  .title = "Lines: a title",
                  .x_label = "tokens",
                  .y_label = "HBM (GiB)",
                  .x_column = "tokens",
                  .y_column = "peak_bytes",
                  .y_unit = 1024,
                  .lone_mark_label = "open",
                  .end_label = "out of memory",
                  .log_y_where_wide = true,
                  .log_x_where_wide = true,
                  .integer_x = false};
  lines.lines.push_back({.label = "full",
                         .points = {{1, 10}, {2, 1.0 / 3}, {16, 900}},
                         .spreads = {{2, 0.25, 0.5}},
                         .band = {{1, 9, 11}},
                         .lone_mark = ChartPoint{1, 12},
                         .end = ChartPoint{16, 1000},
                         .has_marks = false});
  lines.levels = {{"usable", 2000}};
  lines.plumbs = {{"bound", 3}};
  lines.callouts = {{"full: OOM", {16, 1000}, 0}, {"all", {2, 5}, std::nullopt}};
  AreaChart area{.name = "area", .title = "Area", .x_label = "s", .y_label = "B", .x_column = "s"};
  area.x = {0, 1, 2};
  area.bands = {{{"weights", {"#BBBBBB", 3, true}}, "weights_bytes", {1, 2, 3}}};
  area.levels = {{"level", 4}};
  ScatterChart scatter{.name = "scatter",
                       .title = "Scatter",
                       .x_label = "bytes",
                       .y_label = "error",
                       .x_column = "bytes",
                       .y_column = "error",
                       .x_scale = 100,
                       .log_x = true,
                       .faint_label = "1 more",
                       .remark = "below 1e-5: full"};
  scatter.groups = {{.label = "h2o", .points = {{0.1, 0.02}, {0.2, 0.01}}, .style = 3},
                    {.label = "oracle", .points = {{0.1, 0.001}}, .reference = true},
                    {.label = "other", .points = {{0.3, 0.5}}, .faint = true}};
  ParityChart parity{.name = "parity",
                     .title = "Parity",
                     .x_label = "measured",
                     .y_label = "predicted",
                     .x_column = "measured_s",
                     .y_column = "predicted_s",
                     .band = 0.15,
                     .band_label = "within 15 %"};
  parity.groups = {{.label = "gemm", .points = {{1, 1.1}, {2, 1.9}}}};
  const PartStyle weights{"weights", {"#BBBBBB", 0, false}};
  BarChart bars{.name = "bars",
                .title = "Bars",
                .x_label = "HBM (GiB)",
                .column = "bytes",
                .unit = 2,
                .limit_label = "usable",
                .compared_label = "published",
                .range_label = "90 % interval",
                .styles = {weights, {"KV", {"#0072B2", 5, true}}}};
  bars.bars = {{.label = "head", .heading = true},
               {.label = "one",
                .detail = "peak in decode",
                .parts = {{weights, 3.5}},
                .limit = 10,
                .cut = 3,
                .end_text = "asked\nfor",
                .compared = 2,
                .compared_text = "2 GiB",
                .range = ChartRange{3, 4.5}}};
  HeatMap map{.name = "map",
              .title = "Map",
              .x_label = "x",
              .y_label = "y",
              .z_label = "z (s)",
              .x_column = "x",
              .y_column = "y",
              .z_column = "z_s",
              .z_unit = 0.001};
  map.x_values = {"1", "2"};
  map.y_values = {"a"};
  map.values = {{1.5, std::nullopt}};
  return {draw(lines), draw(area), draw(scatter), draw(parity), draw(bars), draw(map)};
}

std::vector<Figure> many_figures() {
  std::vector<Figure> all = every_kind();
  const auto take = [&](FigureSet set) {
    for (Figure& figure : set.figures) all.push_back(std::move(figure));
  };
  const Scenario run = test::sample_scenario();
  take(run_figures(test::sample_report(run)));
  const Scenario service = test::sample_serve_scenario();
  take(run_figures(test::sample_serve_report(service)));
  take(replay_figures(test::sample_replay()));
  return all;
}

TEST_CASE("a figure read back from its document is drawn to the same byte") {
  const std::vector<Figure> all = many_figures();
  CHECK(all.size() > 20);
  std::set<std::string> charts;
  for (const Figure& figure : all) {
    INFO(figure.name);
    std::set<std::string> words;
    const std::string document = figure_document(figure);
    const StoredFigure back = stored(document, words);
    Figure again = draw(back.chart);
    again.kind = back.kind;
    CHECK(again.script == figure.script);
    CHECK(again.csv == figure.csv);
    CHECK(again.title == figure.title);
    CHECK(again.page == figure.page);
    CHECK(again.chart == figure.chart);
    CHECK(back.kind == (figure.kind.empty() ? figure.name : figure.kind));
    charts.insert(figure.chart.at("chart").get<std::string>());
  }
  CHECK(charts.size() == 6);
}

TEST_CASE("a figure's document with an invalid value is refused with its place") {
  std::map<std::string, json> good;
  for (const Figure& figure : every_kind()) {
    good[figure.name] = json::parse(figure_document(figure));
  }
  struct Broken {
    const char *figure, *pointer;
    json value;
    const char* complaint;
  };
  const std::vector<Broken> all{
      {"lines", "/schema", "kvsim.figure/2", "/schema: expected \"kvsim.figure/1\""},
      {"lines", "/chart", "pie", "/chart"},
      {"lines", "/name", "../x", "/name: expected a file name"},
      {"lines", "/name", "x'\nsystem 'id'", "/name: expected a file name"},
      {"lines", "/name", ".hidden", "/name: expected a file name"},
      {"lines", "/figure", "a b", "/figure: expected a file name"},
      {"lines", "/y_unit", 0, "/y_unit: expected a number above 0"},
      {"lines", "/lines", json::array(), "a chart without lines"},
      {"lines", "/lines/0/points/0", {1, 2, 3}, "/lines/0/points/0: expected 2 numbers"},
      {"lines", "/lines/0/points/0", {1e16, 2}, "a place on the x axis"},
      {"lines", "/lines/0/colour", "#000000", "/lines/0/colour: unknown key"},
      {"lines", "/callouts/0/line", 1, "a callout of a line that there is not"},
      {"lines", "/log_seconds_x", "yes", "/log_seconds_x"},
      {"lines", "/run", "system('id')", "/run: unknown key"},
      {"area", "/bands/0/values", {1, 2}, "a value each x"},
      {"area", "/bands/0/style/colour", "red", "/bands/0/style/colour: expected a colour"},
      {"area", "/bands/0/style/colour", "#00000'", "/bands/0/style/colour: expected a colour"},
      {"area", "/bands/0/style/pattern", 10, "/bands/0/style/pattern"},
      {"scatter", "/groups/0/points/0", {0.1, 0}, "a mark at 0"},
      {"scatter", "/groups/0/points/0", {-1, 1}, "a mark at 0"},
      {"scatter", "/groups/0/style", 210, "a style that there is not"},
      {"scatter", "/groups", json::array(), "a chart without marks"},
      {"parity", "/band", 1, "a share below 1"},
      {"bars", "/bars/1/parts/0/of", "scores", "no style of this chart is called \"scores\""},
      {"map", "/values", {{1}}, "a value for each of x_values"},
      {"map", "/values", {{nullptr, nullptr}}, "a map without values"},
  };
  for (const Broken& one : all) {
    json document = good.at(one.figure);
    document[json::json_pointer{one.pointer}] = one.value;
    INFO(one.figure, one.pointer, one.value.dump());
    std::set<std::string> words;
    std::string said;
    try {
      (void)stored(document.dump(), words);
    } catch (const InputError& error) {
      said = error.what();
    }
    CHECK_MESSAGE(said.find(one.complaint) != std::string::npos, said);
    CHECK(said.find("f.figure.json: ") != std::string::npos);
  }
}

/// Replaces every text of a document by `text`, except keywords of the reader.
void poison(json& value, const std::string& text) {
  if (value.is_string()) value = text;
  if (!value.is_structured()) return;
  for (auto it = value.begin(); it != value.end(); ++it) {
    const bool fixed = value.is_object() && (it.key() == "schema" || it.key() == "chart" ||
                                             it.key() == "name" || it.key() == "colour");
    if (!fixed) poison(*it, text);
  }
}

TEST_CASE("texts of a document are drawn unchanged and never executed") {
  if (std::system("gnuplot --version > /dev/null 2>&1") != 0) {
    fmt::print("KVSIM-SKIPPED: gnuplot is not installed\n");
    return;
  }
  const fs::path dir = test::scratch_folder() / "figure_documents";
  fs::remove_all(dir);
  fs::create_directories(dir);
  const std::string touch = "touch " + (dir / "pwned").string();
  for (const std::string& text :
       {"x'; system('" + touch + "'); '", "`" + touch + "`", "\"; system \"" + touch + "\"; \"",
        "EOD\n'\nsystem('" + touch + "')\n", std::string{"\nset terminal svg size 1,1 x'"}}) {
    std::vector<Figure> figures;
    for (const Figure& figure : every_kind()) {
      json document = json::parse(figure_document(figure));
      poison(document, text);
      document.erase("figure");
      std::set<std::string> words;
      figures.push_back(draw(stored(document.dump(), words).chart));
    }
    const DrawnFigures drawn = draw_figures(figures, dir);
    INFO(text, "\n", fmt::format("{}", fmt::join(drawn.notes, "\n")));
    CHECK(drawn.files.size() == 2 * figures.size());
    const DrawnFigures paper = draw_figures(figures, dir, {}, {.formats = {"svg"}, .paper = true});
    CHECK_MESSAGE(paper.files.size() == figures.size(),
                  fmt::format("{}", fmt::join(paper.notes, "\n")));
    CHECK_FALSE(fs::exists(dir / "pwned"));
  }
}

// --- several results ------------------------------------------------------------------------

LineChart held(const std::string& label, double bytes, double unit, const std::string& unit_name) {
  LineChart chart{.name = "bytes_vs_step",
                  .title = "Cache held: trace t",
                  .x_label = "decode step",
                  .y_label = "keys and values (" + unit_name + ")",
                  .x_column = "step",
                  .y_column = "bytes_held",
                  .y_unit = unit,
                  .log_y_where_wide = true};
  chart.lines.push_back({.label = label, .points = {{0, bytes}, {1, 2 * bytes}}});
  return chart;
}

template <class Chart>
Chart joined(const std::vector<std::pair<std::string, AnyChart>>& parts) {
  std::vector<OverlayPart> given;
  for (const auto& [of, chart] : parts) given.push_back({of, &chart});
  const auto out = overlay("both", given);
  REQUIRE_MESSAGE(out.has_value(), out.error());
  return std::get<Chart>(out.value());
}
std::string refusal(const std::vector<std::pair<std::string, AnyChart>>& parts) {
  std::vector<OverlayPart> given;
  for (const auto& [of, chart] : parts) given.push_back({of, &chart});
  const auto out = overlay("both", given);
  REQUIRE_FALSE(out.has_value());
  return out.error();
}

TEST_CASE("lines of two results share one pair of axes with the larger unit") {
  constexpr double kMiB = 1024.0 * 1024.0;
  LineChart a = held("full", kMiB, kMiB, "MiB");
  LineChart b = held("full", 5 * kMiB * 1024, kMiB * 1024, "GiB");
  a.x_label = "decode step (means of 3 steps)";
  a.levels = {{"usable", 100}, {"pool", 7}};
  b.levels = {{"usable", 100}, {"pool", 8}};
  a.lines[0].end = ChartPoint{1, 3};
  a.end_label = "out of memory";
  a.callouts = {{"full: OOM", {1, 3}, 0}};
  b.callouts = {{"full: OOM", {1, 4}, 0}};
  b.lines[0].band = {{0, 1, 2}};
  b.lines[0].spreads = {{0, 1, 2}};
  const auto both = joined<LineChart>({{"a", a}, {"b", b}});
  CHECK(both.title == "Cache held: a, b");
  CHECK(both.x_label == "decode step");
  CHECK(both.y_label == "keys and values (GiB)");
  CHECK(both.y_unit == b.y_unit);
  CHECK(both.log_y_where_wide);
  CHECK(both.end_label == "out of memory");
  REQUIRE(both.lines.size() == 2);
  CHECK(both.lines[0].label == "a: full");
  CHECK(both.lines[1].label == "b: full");
  CHECK(both.lines[0].points[0].y == kMiB);
  CHECK(both.lines[0].end.has_value());
  CHECK(both.lines[1].band.size() == 1);
  CHECK(both.lines[1].spreads.size() == 1);
  REQUIRE(both.levels.size() == 3);
  CHECK(both.levels[0].label == "usable");
  CHECK(both.levels[1].label == "a: pool");
  CHECK(both.levels[2].label == "b: pool");
  REQUIRE(both.callouts.size() == 2);
  CHECK(both.callouts[1].text == "b, full: OOM");
  CHECK(both.callouts[1].line == 1);
  // The drawing reports it as well.
  const Figure figure = draw(both);
  CHECK(figure.csv.starts_with("series,kind,step,bytes_held,label\n0,0,0,1048576,a: full\n"));
  CHECK(figure.script.find("set label 'keys and values (GiB)' at screen") != std::string::npos);
}

TEST_CASE("axes of seconds and of other quantities are kept and differing ones refused") {
  LineChart cdf = held("full", 1, 1, "%");
  cdf.log_seconds_x = true;
  cdf.integer_x = false;
  cdf.x_label = "time to first token";
  for (ChartPoint& p : cdf.lines[0].points) p.x += 1;
  const auto both = joined<LineChart>({{"a", cdf}, {"b", cdf}});
  CHECK(both.log_seconds_x);
  CHECK_FALSE(both.integer_x);
  CHECK(draw(both).script.find("'time to first token (s)'") != std::string::npos);
  LineChart linear = cdf;
  linear.log_seconds_x = false;
  CHECK(refusal({{"a", cdf}, {"b", linear}}).find("an axis of seconds differs") !=
        std::string::npos);
  LineChart milli = cdf;
  milli.x_label = "time (ms)";
  CHECK(refusal({{"a", cdf}, {"b", milli}}) ==
        "the x axis differs: \"time to first token\" in a, \"time (ms)\" in b");
  LineChart many = held("full", 1, 1, "B");
  many.lines.assign(16, many.lines[0]);
  CHECK(refusal({{"a", many}, {"b", many}}) == "32 lines could not be distinguished");
}

TEST_CASE("marks of two results have one front, bars a heading each, maps and bands are refused") {
  std::map<std::string, Figure> of;
  std::set<std::string> words;
  std::map<std::string, AnyChart> charts;
  for (const Figure& figure : every_kind()) {
    charts.emplace(figure.name, stored(figure_document(figure), words).chart);
  }
  const auto twice = [&](const std::string& name) {
    return std::vector<std::pair<std::string, AnyChart>>{{"a", charts.at(name)},
                                                         {"b", charts.at(name)}};
  };
  auto better = std::get<ScatterChart>(charts.at("scatter"));
  for (MarkGroup& group : better.groups) {
    for (ChartPoint& p : group.points) p.y /= 4;
  }
  better.remark = "other";
  const auto marks = joined<ScatterChart>({{"a", charts.at("scatter")}, {"b", better}});
  REQUIRE(marks.groups.size() == 6);
  CHECK(marks.groups[3].label == "b: h2o");
  CHECK_FALSE(marks.groups[0].style.has_value());  // both would have the fourth style
  CHECK(marks.faint_label == "2 more");
  CHECK(marks.remark == "a: below 1e-5: full; b: other");
  CHECK(marks.log_x);
  CHECK(marks.x_scale == 100);
  const std::vector<ChartPoint> front = pareto_front(marks.groups);
  REQUIRE_FALSE(front.empty());
  CHECK(front.front().y == 0.02 / 4);
  auto linear = better;
  linear.log_x = false;
  CHECK(refusal({{"a", better}, {"b", linear}}).starts_with("a logarithmic x axis differs"));
  const auto bars = joined<BarChart>(twice("bars"));
  REQUIRE(bars.bars.size() == 4);
  CHECK(bars.bars[0].label == "a: head");
  CHECK(bars.bars[2].label == "b: head");
  CHECK(bars.styles.size() == 2);
  CHECK(bars.limit_label == "usable");
  (void)draw(bars);
  CHECK(joined<ParityChart>(twice("parity")).band == 0.15);
  CHECK(refusal(twice("map")).find("room for one result") != std::string::npos);
  CHECK(refusal(twice("area")).find("would hide") != std::string::npos);
  CHECK(refusal({{"a", charts.at("map")}, {"b", charts.at("bars")}}) ==
        "it is drawn in another way in b than in a");
}

TEST_CASE("results share figures by name or by kind and conflicts are reported") {
  const auto figure = [](const std::string& name, const std::string& kind, const char* column) {
    LineChart chart = held("full", 1, 1, "B");
    chart.name = name;
    chart.y_column = column;
    return StoredFigure{kind, chart};
  };
  const std::vector<FiguresOfResult> results{
      {"a",
       {figure("m_x", "m", "y"), figure("n_1", "n", "y"), figure("n_2", "n", "y"),
        figure("only", "only", "y"), figure("t", "t", "rate")}},
      {"b",
       {figure("m_z", "m", "y"), figure("n_1", "n", "y"), figure("n_2", "n", "y"),
        figure("t", "t", "final_rate")}}};
  const Overlaid out = overlay_results(results);
  std::vector<std::string> names;
  for (const AnyChart& chart : out.charts) names.push_back(name_of(chart));
  CHECK(names == std::vector<std::string>{"m", "n_1", "n_2"});
  CHECK(out.notes ==
        std::vector<std::string>{"only (y over step): there is none in b",
                                 "t (rate over step): b has final_rate over step there",
                                 "t (final_rate over step): a has rate over step there"});
  // If one result has several charts and another has different ones, all are included under the
  // name of their result.
  std::vector<FiguresOfResult> uneven = results;
  uneven[1].figures.erase(uneven[1].figures.begin() + 2);
  const Overlaid together = overlay_results(uneven);
  const auto& n = std::get<LineChart>(together.charts.at(1));
  CHECK(n.name == "n");
  REQUIRE(n.lines.size() == 3);
  CHECK(n.lines[0].label == "a, 1: full");
  CHECK(n.lines[1].label == "a, 2: full");
  CHECK(n.lines[2].label == "b: full");
  // Figures omitted for the same reason are reported once.
  std::vector<FiguresOfResult> many = results;
  for (FiguresOfResult& result : many) {
    std::erase_if(result.figures, [](const StoredFigure& f) { return f.kind != "n"; });
    for (StoredFigure& f : result.figures) {
      auto& lines = std::get<LineChart>(f.chart).lines;
      lines.assign(20, lines[0]);
    }
  }
  CHECK(overlay_results(many).notes ==
        std::vector<std::string>{"n (2 figures): 40 lines could not be distinguished"});
}

}  // namespace
}  // namespace kvsim
