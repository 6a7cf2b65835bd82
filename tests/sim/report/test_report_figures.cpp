#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "models/cost/op.hpp"
#include "models/units/error.hpp"
#include "sim/report/chart/chart_parts.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/chart/line_layout.hpp"
#include "sim/report/chart/owner_styles.hpp"
#include "sim/report/figure/figure.hpp"
#include "sim/report/figure/line_names.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/replay/replay_figures.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/run/run_figures.hpp"
#include "sim/report/run/run_folder.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

fs::path scratch(const std::string& name) {
  const fs::path path = test::scratch_folder() / ("figures_" + name);
  fs::remove_all(path);
  fs::create_directories(path);
  return path;
}
std::string read(const fs::path& path) {
  std::ifstream in{path, std::ios::binary};
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}
/// Whether gnuplot is installed; if not, the case is reported as skipped.
bool have_gnuplot() {
  if (std::system("gnuplot --version > /dev/null 2>&1") == 0) return true;
  fmt::print("KVSIM-SKIPPED: gnuplot is not installed\n");
  return false;
}
std::vector<std::string> names(const FigureSet& set) {
  std::vector<std::string> out;
  for (const Figure& figure : set.figures) out.push_back(figure.name);
  return out;
}

TEST_CASE("gnuplot strings are single-quoted and hold no line ends") {
  CHECK(gnuplot_quote("plain") == "'plain'");
  CHECK(gnuplot_quote("it's `rm -rf`") == "'it’s `rm -rf`'");
  CHECK(gnuplot_quote("a\nset output '|sh'") == "'a set output ’|sh’'");
  CHECK(gnuplot_quote("\"\\n@x$1") == "'\"\\n@x$1'");
}

TEST_CASE("ticks are round and cover the range") {
  for (const auto& [low, high] :
       {std::pair{0.0, 1.0}, {20000.0, 54000.0}, {-3.0, 7.5}, {0.0, 3e-9}, {5.0, 5.0}}) {
    const auto ticks = chart::ticks_over(low, high, 5);
    CHECK(ticks.first <= low);
    CHECK(ticks.last >= high);
    CHECK(ticks.step > 0);
  }
  CHECK(chart::ticks_over(20000, 54000, 5).step == 10000);
}

TEST_CASE("a run has its figures once each and with the same bytes each time") {
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const FigureSet set = run_figures(report);
  CHECK(names(set) == std::vector<std::string>{"memory_vs_length", "throughput_vs_length",
                                               "hbm_breakdown", "error_vs_step", "bytes_vs_step",
                                               "error_vs_bytes"});
  CHECK(set.notes.empty());
  const FigureSet again = run_figures(test::sample_report(scenario));
  for (std::size_t i = 0; i < set.figures.size(); ++i) {
    CHECK(set.figures[i].script == again.figures[i].script);
    CHECK(set.figures[i].csv == again.figures[i].csv);
  }
}

TEST_CASE("the crossing and the HBM line are on the figure of memory") {
  const Scenario scenario = test::sample_scenario();
  const Figure figure = run_figures(test::sample_report(scenario)).figures.front();
  CHECK(figure.script.find("'usable HBM 79.0 GiB'") != std::string::npos);
  CHECK(figure.script.find("'full: OOM at 53,") != std::string::npos);
  CHECK(figure.script.find("'HBM (GiB)'") != std::string::npos);
  CHECK(figure.title ==
        "Peak memory versus length: Llama-2-7B on A800-80GB-SXM, hf-sdpa, fp32, batch 1, prompt "
        "20,000, output 34,000, budget 18,000 entries");
  CHECK(figure.csv.starts_with("series,kind,tokens,peak_bytes,label\n"));
}

TEST_CASE("points that differ in more than the method get separate files") {
  Scenario scenario = test::sample_scenario();
  scenario.points[2].keys["gpu"] = "H200-SXM";
  scenario.points[3].keys["gpu"] = "H200-SXM";
  RunReport report = test::sample_report(scenario);
  report.replay.reset();
  CHECK(names(run_figures(report)) ==
        std::vector<std::string>{"memory_vs_length_a800-80gb-sxm", "memory_vs_length_h200-sxm",
                                 "throughput_vs_length_a800-80gb-sxm",
                                 "throughput_vs_length_h200-sxm", "hbm_breakdown"});
}

TEST_CASE("a list of lengths is one line over them") {
  Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  scenario.points.assign(3, test::sample_point("zeromerge", 18000));
  report.results.assign(3, report.results[1]);
  for (std::size_t i = 0; i < 3; ++i) {
    scenario.points[i].spec.prompt_tokens = static_cast<std::int64_t>(4096 << i);
    scenario.points[i].keys["prompt_tokens"] = 4096 << i;
    report.results[i].timeline.clear();
  }
  scenario.published.clear();
  const FigureSet set = run_figures(report);
  CHECK(names(set) == std::vector<std::string>{"peak_vs_final_length", "throughput_vs_length",
                                               "hbm_breakdown", "error_vs_step", "bytes_vs_step",
                                               "error_vs_bytes"});
}

TEST_CASE("cache per layer is drawn only if layers differ") {
  const Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  const auto drawn = [&](const std::string& name) {
    const std::vector<std::string> all = names(run_figures(report));
    return std::count(all.begin(), all.end(), name);
  };
  CHECK(drawn("cache_per_layer") == 0);
  CHECK(drawn("replay_cache_per_layer") == 0);
  report.results[1].kv_bytes_per_layer[3] += test::gib(0.25);
  CHECK(drawn("cache_per_layer") == 1);
  report.replay->methods[1].layers[2].bytes_final *= 2;
  CHECK(drawn("replay_cache_per_layer") == 1);
}

TEST_CASE("no two lines look the same in colour or in grey") {
  for (std::size_t i = 0; i < 210; ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const chart::LineStyle a = chart::line_style(i), b = chart::line_style(j);
      const int differences =
          (a.colour != b.colour ? 1 : 0) + (a.dash != b.dash ? 1 : 0) + (a.mark != b.mark ? 1 : 0);
      const bool enough = differences >= (i < 30 ? 2 : 1);
      if (!enough) FAIL_CHECK("lines ", i, " and ", j);
    }
  }
}

/// The rows "SERIES,X,Y" of a data block in a script, by series.
std::map<int, std::vector<ChartPoint>> block_of(const std::string& script,
                                                const std::string& name) {
  std::map<int, std::vector<ChartPoint>> rows;
  std::istringstream in{script.substr(script.find("$" + name + " << EOD\n"))};
  std::string row;
  std::getline(in, row);
  while (std::getline(in, row) && row != "EOD") {
    int series = 0;
    ChartPoint p;
    if (std::sscanf(row.c_str(), "%d,%lf,%lf", &series, &p.x, &p.y) == 3) rows[series].push_back(p);
  }
  return rows;
}

struct BlockMark {
  int ring = 0;
  ChartPoint at{};
};
/// The rows "SERIES,RING,X,Y" of a block of marks, by series.
std::map<int, std::vector<BlockMark>> marks_of(const std::string& script, const std::string& name) {
  std::map<int, std::vector<BlockMark>> rows;
  std::istringstream in{script.substr(script.find("$" + name + " << EOD\n"))};
  std::string row;
  std::getline(in, row);
  while (std::getline(in, row) && row != "EOD") {
    int series = 0;
    BlockMark mark;
    REQUIRE(std::sscanf(row.c_str(), "%d,%d,%lf,%lf", &series, &mark.ring, &mark.at.x,
                        &mark.at.y) == 4);
    rows[series].push_back(mark);
  }
  return rows;
}

TEST_CASE("overlapping lines are all visible at their values for any number of them") {
  for (const std::size_t n_lines : {2U, 3U, 5U, 9U, 20U}) {
    for (const std::size_t n_points : {4U, 400U}) {
      INFO(n_lines, " lines of ", n_points, " points");
      LineChart chart{.name = "c", .x_column = "x", .y_column = "y"};
      for (std::size_t i = 0; i < n_lines; ++i) {
        ChartLine line{.label = fmt::format("line {}", i)};
        for (std::size_t k = 0; k < n_points; ++k) {
          line.points.push_back({static_cast<double>(k), 100 + static_cast<double>(k)});
        }
        chart.lines.push_back(line);
      }
      const Figure figure = draw(chart);
      const auto marks = marks_of(figure.script, "marks");
      REQUIRE(marks.size() == n_lines);
      CHECK(block_of(figure.script, "stripes").size() == n_lines);
      std::set<std::pair<double, int>> places;
      std::size_t all = 0;
      for (const auto& [series, of_line] : marks) {
        for (const BlockMark& mark : of_line) {
          CHECK(mark.at.x == std::round(mark.at.x));  // a value, not a position between two
          CHECK(mark.at.y == 100 + mark.at.x);
          CHECK(mark.ring < 5);
          places.insert({mark.at.x, mark.ring});
          ++all;
        }
      }
      CHECK(places.size() == all);  // marks at one value differ in size
    }
  }
}

TEST_CASE("lines that do not overlap have a plain mark at each value") {
  LineChart chart{.name = "c", .x_column = "x", .y_column = "y"};
  chart.lines = {{.label = "a", .points = {{0, 1}, {1, 1}, {2, 1}}},
                 {.label = "b", .points = {{0, 2}, {1, 2}, {2, 2}}},
                 {.label = "level", .points = {{0, 3}, {2, 3}}, .has_marks = false}};
  const Figure figure = draw(chart);
  CHECK(block_of(figure.script, "stripes").empty());
  const auto marks = marks_of(figure.script, "marks");
  CHECK(marks.size() == 2);  // none at an x value without a run
  for (const int series : {0, 1}) {
    REQUIRE(marks.at(series).size() == 3);
    for (std::size_t k = 0; k < 3; ++k) {
      CHECK(marks.at(series)[k].at.x == chart.lines[static_cast<std::size_t>(series)].points[k].x);
      CHECK(marks.at(series)[k].ring == 0);
    }
  }
}

TEST_CASE("open marks, crosses and bars of several lines at one place stay there") {
  LineChart chart{.name = "c", .x_column = "x", .y_column = "y"};
  for (int i = 0; i < 3; ++i) {
    chart.lines.push_back({.label = fmt::format("line {}", i),
                           .points = {{0, 1.0 + i}, {20000, 2.0 + i}},
                           .spreads = {{20000, 1, 4}},
                           .lone_mark = ChartPoint{20000, 9},
                           .end = ChartPoint{20000, 8}});
  }
  const Figure figure = draw(chart);
  for (const char* name : {"lone_marks", "ends"}) {
    const auto marks = marks_of(figure.script, name);
    std::set<int> rings;
    for (int i = 0; i < 3; ++i) {
      REQUIRE(marks.at(i).size() == 1);
      CHECK(marks.at(i).front().at.x == 20000);
      rings.insert(marks.at(i).front().ring);
    }
    CHECK(rings == std::set<int>{0, 1, 2});
  }
  for (const auto& [series, bars] : block_of(figure.script, "spreads")) {
    for (const ChartPoint bar : bars) CHECK(bar.x == 20000);
  }
  for (const char* width : {"lw 5.4", "lw 3.4", "lw 1.4"}) {
    CHECK(figure.script.find(width) != std::string::npos);
  }
}

TEST_CASE("no stem of a callout passes through another text") {
  LineChart chart{
      .name = "c", .x_column = "x", .y_column = "y", .levels = {{"usable HBM 79.0 GiB", 90}}};
  for (int i = 0; i < 6; ++i) {
    const ChartPoint end{100.0 * i + 20, 90};
    chart.lines.push_back(
        {.label = fmt::format("method {}", i), .points = {{0, 1}, end}, .end = end});
    chart.callouts.push_back(
        {fmt::format("method {}: OOM at {} tokens", i, 100 * i), end, static_cast<std::size_t>(i)});
  }
  for (const double width : {340.0, 586.0, 860.0}) {
    chart::LineBox box = chart::extent(chart);
    box.width = width;
    const std::vector<chart::Banner> banners = chart::banners_of(chart, box);
    REQUIRE(banners.size() == 7);
    std::size_t stems = 0;  // long texts leave too little space for all stems
    for (const chart::Banner& upper : banners) {
      CHECK(upper.left >= 0);
      CHECK(upper.right <= width);
      if (!upper.has_stem) continue;
      ++stems;
      const double stem = box.pixel_x(upper.points_to.x);
      for (const chart::Banner& lower : banners) {
        if (lower.row >= upper.row) continue;
        const bool is_clear = stem < lower.left || stem > lower.right;
        CHECK_MESSAGE(is_clear, upper.text << " strikes through " << lower.text);
      }
    }
    CHECK(stems >= 1);
  }
}

TEST_CASE("a line that ends for lack of memory ends in a cross") {
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  for (const Figure& figure : run_figures(report).figures) {
    if (figure.kind != "memory_vs_length" && figure.kind != "throughput_vs_length") continue;
    INFO(figure.kind);
    const auto ends = marks_of(figure.script, "ends");
    REQUIRE(ends.size() == 1);  // only the full cache runs out of memory
    CHECK(ends.at(0).front().at.x > 53000);
    CHECK(figure.script.find("title 'out of memory'") != std::string::npos);
    CHECK(figure.csv.find("\n0,2,") != std::string::npos);
  }
}

TEST_CASE("an axis is logarithmic if values need it and its ticks are plain numbers") {
  CHECK_FALSE(chart::needs_log(11, 13));
  CHECK(chart::needs_log(0.03, 100));
  CHECK_FALSE(chart::needs_log(0, 100));
  for (const double value : {0.001, 0.02, 30.0, 100.0, 53912.0, 1e6}) {
    CHECK(chart::axis_number(value).find('e') == std::string::npos);
  }
  CHECK(chart::axis_number(53912) == "53,912");
  CHECK(chart::axis_number(2e-5) == "2e-5");
  const auto words = [](const std::vector<chart::Tick>& ticks) {
    std::vector<std::string> out;
    for (const chart::Tick& tick : ticks) out.push_back(tick.words);
    return out;
  };
  using Words = std::vector<std::string>;
  CHECK(words(chart::log_ticks(0.01, 100, 330, chart::Direction::kUp)) ==
        Words{"0.01", "0.03", "0.1", "0.3", "1", "3", "10", "30", "100"});
  CHECK(words(chart::linear_ticks(11, 13, 300, chart::Direction::kAcross)) ==
        Words{"11.0", "11.5", "12.0", "12.5", "13.0"});
  // A time axis has one unit.
  LineChart cdf{.name = "c",
                .x_label = "time to first token",
                .x_column = "ttft_s",
                .y_column = "percent",
                .integer_x = false,
                .log_seconds_x = true};
  const auto script_of = [&](double first, double last) {
    cdf.lines = {{.label = "a", .points = {{first, 0}, {last, 100}}}};
    return draw(cdf).script;
  };
  CHECK(script_of(11, 13).find("'time to first token (s)'") != std::string::npos);
  CHECK(script_of(11, 13).find("logscale") == std::string::npos);
  CHECK(script_of(0.03, 100).find("set logscale x") != std::string::npos);
  CHECK(script_of(0.03, 0.9).find("'time to first token (ms)'") != std::string::npos);
}

TEST_CASE("lines are named by their differences and the title states the common settings") {
  Scenario scenario = test::sample_scenario();
  CHECK(line_names(scenario, {0, 1, 2}).labels ==
        std::vector<std::string>{"full", "zeromerge", "h2o"});
  CHECK(line_names(scenario, {0, 1, 2}).shared == "budget 18,000 entries");
  // A value shared by two points is not a difference from the third, which has no such value.
  for (const std::size_t i : {1U, 2U}) {
    scenario.points[i].keys["method_params"] = {{"score_exec", "fused_two_pass"}};
  }
  CHECK(line_names(scenario, {0, 1, 2, 3}).labels ==
        std::vector<std::string>{"full", "zeromerge", "h2o", "streaming-llm"});
  CHECK(line_names(scenario, {0, 1, 2, 3}).shared ==
        "budget 18,000 entries, score exec fused_two_pass");
  scenario.points[2].keys["method_params"] = {{"score_exec", "eager"}};
  scenario.points[3].keys["budget"] = 0.2;
  CHECK(line_names(scenario, {0, 1, 2, 3}).labels ==
        std::vector<std::string>{
            "full", "zeromerge budget 18,000 entries score exec fused_two_pass",
            "h2o budget 18,000 entries score exec eager", "streaming-llm budget 20 %"});
  CHECK(line_names(scenario, {0, 1, 2, 3}).shared.empty());
  // The presence of a value may be the only difference.
  scenario.points[2].keys = scenario.points[1].keys;
  scenario.points[2].keys.erase("method_params");
  CHECK(line_names(scenario, {1, 2}).labels ==
        std::vector<std::string>{"zeromerge score exec fused_two_pass", "zeromerge"});
  CHECK(line_names(scenario, {1, 1}).labels ==
        std::vector<std::string>{"zeromerge", "zeromerge (2)"});
}

TEST_CASE("every owner has separate words and a separate fill") {
  std::set<std::string_view> words;
  std::set<std::pair<std::string_view, int>> fills;
  for (std::size_t i = 0; i < kOwners; ++i) {
    const std::string_view owner = name_of(static_cast<Owner>(i));
    INFO(owner);
    const PartStyle& style = style_of_owner(owner);
    CHECK(style.words != "other");
    CHECK(style.words.find('_') == std::string_view::npos);
    words.insert(style.words);
    fills.insert({style.fill.colour, style.fill.pattern});
  }
  CHECK(words.size() == kOwners);
  CHECK(fills.size() == kOwners);
  CHECK(owner_styles().size() == kOwners);
  CHECK(style_of_owner("no such owner").words == "other");
}

/// Brightness of "#RRGGBB" in grey print, 0 to 1 (ITU-R BT.601).
double grey_of(std::string_view colour) {
  const auto channel = [&](std::size_t at) {
    return static_cast<double>(std::stoi(std::string{colour.substr(at, 2)}, nullptr, 16)) / 255;
  };
  return 0.299 * channel(1) + 0.587 * channel(3) + 0.114 * channel(5);
}

TEST_CASE("in grey print fills differ by shade or by hatching") {
  const std::vector<PartStyle> styles = breakdown_styles();
  for (std::size_t i = 0; i < styles.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      const Fill a = styles[i].fill, b = styles[j].fill;
      INFO(styles[i].words, " and ", styles[j].words);
      CHECK((a.pattern != b.pattern || std::abs(grey_of(a.colour) - grey_of(b.colour)) > 0.1));
    }
  }
}

/// The part of a script that draws the boxes of `words`, up to its legend entry.
std::string boxes_of(const std::string& script, const std::string& words) {
  const std::size_t title = script.find("title '" + words + "'");
  if (title == std::string::npos) return "";
  return script.substr(script.rfind("boxxyerror", title),
                       title - script.rfind("boxxyerror", title));
}

TEST_CASE("an owner has the same fill whichever other owners are present") {
  const Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  const auto breakdown = [&] {
    for (Figure& figure : run_figures(report).figures) {
      if (figure.kind == "hbm_breakdown") return figure.script;
    }
    return std::string{};
  };
  const std::string all = breakdown();
  for (StaticResult& result : report.results) {
    result.oom.reset();
    result.peak_owners = {{"kv_cache", test::gib(10)}, {"logits", test::gib(1)}};
  }
  const std::string few = breakdown();
  for (const char* words : {"KV cache", "logits"}) {
    CHECK_FALSE(boxes_of(few, words).empty());
    CHECK(boxes_of(few, words) == boxes_of(all, words));
  }
  CHECK(boxes_of(few, "weights").empty());
}

TEST_CASE("the requested amount is written and a truncated bar has a break mark") {
  const Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  const auto breakdown = [&] { return run_figures(report).figures[2]; };
  const Figure small = breakdown();
  CHECK(small.script.find("'842.8 MiB'") != std::string::npos);
  CHECK(small.script.find("set object polygon") == std::string::npos);
  report.results[0].oom->requested = test::gib(400);
  const Figure large = breakdown();
  CHECK(large.script.find("'400 GiB'") != std::string::npos);
  CHECK(large.script.find("set object polygon") != std::string::npos);
  // The data contain the full value; the axis does not.
  CHECK(large.csv.find(",requested\n") != std::string::npos);
  const std::string range = "set xrange [0:";
  CHECK(std::stod(large.script.substr(large.script.find(range) + range.size())) < 130);
}

TEST_CASE("if no point decodes, caches are drawn next to the published sizes") {
  Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  report.replay.reset();
  for (std::size_t i = 0; i < scenario.points.size(); ++i) {
    scenario.points[i].spec.output_tokens = 0;
    report.results[i].timeline.clear();
    report.results[i].oom.reset();
  }
  scenario.points[1].kv_bytes_wanted = Bytes{20'000'000'000};
  scenario.published = {{1, "kv_bytes", 21e9, "21 GB", "a paper", ""}};
  const FigureSet set = run_figures(report);
  REQUIRE(names(set).back() == "cache_size");
  const std::string& script = set.figures.back().script;
  CHECK(script.find("'20 GB'") != std::string::npos);
  CHECK(script.find("'21 GB'") != std::string::npos);
  CHECK(script.find("title 'published'") != std::string::npos);
  CHECK(set.figures.back().csv.find(",published\n") != std::string::npos);
}

TEST_CASE("a scenario selects its figures") {
  Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  scenario.figures = {"hbm_breakdown", "error_vs_step"};
  CHECK(names(wanted_figures(run_figures(report), scenario)) == *scenario.figures);
  scenario.figures->clear();
  CHECK(wanted_figures(run_figures(report), scenario).figures.empty());
  scenario.figures.reset();
  CHECK(wanted_figures(run_figures(report), scenario).figures.size() ==
        run_figures(report).figures.size());
}

TEST_CASE("without data there is no figure") {
  Scenario scenario;
  RunReport report;
  report.scenario = &scenario;
  CHECK(run_figures(report).figures.empty());
  CHECK(replay_figures({}).figures.empty());
}

TEST_CASE("gnuplot draws every figure as SVG and PNG, the same bytes each time") {
  if (!have_gnuplot()) return;
  const fs::path dir = scratch("draw");
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const ResultsFolder a = write_run_results(report, run_document(report), dir / "a");
  const ResultsFolder b = write_run_results(report, run_document(report), dir / "b");
  CHECK(a.notes.empty());
  CHECK(a.figures.size() == 12);
  for (const std::string& name : a.figures) {
    INFO(name);
    CHECK(fs::file_size(dir / "a" / name) > 2000);
    CHECK(read(dir / "a" / name) == read(dir / "b" / name));
  }
}

TEST_CASE("hostile names are drawn unchanged and never executed") {
  if (!have_gnuplot()) return;
  const fs::path dir = scratch("hostile");
  const std::string touch = "touch " + (dir / "pwned").string();
  const std::vector<std::string> hostile{
      "x'; system('" + touch + "'); '",
      "`" + touch + "`",
      "\"; system \"" + touch + "\"; \"",
      "a\nsystem('" + touch + "')\n",
      "%s%n%f 100% {/Symbol a}_b^c @d $e \\n \x1b[31m \xff",
      "',\"\",#!\"',,",
  };
  Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  scenario.title = hostile[1];
  scenario.points.resize(1);
  scenario.published.clear();
  report.results.resize(1);
  for (const std::string& name : hostile) {
    scenario.points.push_back(test::sample_point(name, 18000));
    scenario.points.back().keys[name] = name;
    report.results.push_back(test::sample_result(18000, 50, 0.1));
    report.results.back().peak_owners[name] = test::gib(1);
    ReplayMethod method = report.replay->methods[1];
    method.name = name;
    report.replay->methods.push_back(method);
  }
  for (ScenarioPoint& point : scenario.points) point.keys["model"] = hostile[0] + hostile[1];
  report.replay->trace = hostile[0] + hostile[1] + hostile[3];
  const ResultsFolder written = write_run_results(report, run_document(report), dir / "out");
  CHECK(written.notes.empty());
  CHECK(written.figures.size() == 12);
  CHECK_FALSE(fs::exists(dir / "pwned"));
  const std::string svg = read(dir / "out" / "figures" / "memory_vs_length.svg");
  CHECK(svg.find("{/Symbol a}_b^c @d $e \\n") != std::string::npos);
}

TEST_CASE("a title that ends a CDATA section gives a well-formed SVG") {
  if (!have_gnuplot()) return;
  const fs::path dir = scratch("cdata");
  LineChart chart{.name = "c", .title = "a]]>b", .x_column = "x", .y_column = "y"};
  chart.lines = {{.label = "line ]]]> end", .points = {{0, 1}, {1, 2}}}};
  const DrawnFigures drawn = draw_figures({draw(chart)}, dir);
  CHECK(drawn.notes.empty());
  const std::string svg = read(dir / "c.svg");
  CHECK(svg.find("]]>") == std::string::npos);
  CHECK(svg.find("]]\u2060") != std::string::npos);
}

TEST_CASE("a user's settings of gnuplot change no figure") {
  if (!have_gnuplot()) return;
  const fs::path dir = scratch("settings");
  LineChart chart{.name = "c", .x_column = "x", .y_column = "y"};
  chart.lines = {{.label = "a", .points = {{0, 1}, {1, 2}}}};
  const Figure figure = draw(chart);
  fs::create_directories(dir / "plain");
  fs::create_directories(dir / "set");
  CHECK(draw_figures({figure}, dir / "plain").notes.empty());
  // Without protection, this would end gnuplot before the first line of the script.
  const Figure asks{"asks", "t", "a,b\n",
                    "if (strlen(system('echo $GNUTERM')) > 0) { exit status 1 }\n"
                    "set terminal svg\nset output 'asks.svg'\nplot x\nunset output\n"
                    "set terminal png\nset output 'asks.png'\nplot x\nunset output\n",
                    ""};
  ::setenv("GNUTERM", "no-such-terminal", 1);
  const DrawnFigures drawn = draw_figures({figure, asks}, dir / "set");
  ::unsetenv("GNUTERM");
  CHECK_MESSAGE(drawn.notes.empty(), (drawn.notes.empty() ? std::string{} : drawn.notes.front()));
  CHECK(read(dir / "plain" / "c.svg") == read(dir / "set" / "c.svg"));
}

TEST_CASE("a figure that gnuplot leaves incomplete is an error and not a result") {
  if (!have_gnuplot()) return;
  const fs::path dir = scratch("incomplete");
  // Exits with 0 and a truncated PNG, like gnuplot on a full disk.
  const Figure half{"half", "t", "a,b\n",
                    "set terminal svg\nset output 'half.svg'\nplot x\nunset output\n"
                    "set print 'half.png'\nprint 'no whole PNG'\nset print\n",
                    ""};
  CHECK_THROWS_WITH_AS((void)draw_figures({half}, dir),
                       doctest::Contains("half.png: cannot be written: "), InputError);
}

TEST_CASE("a gnuplot that fails or hangs gives a note") {
  const fs::path dir = scratch("fails");
  const Figure broken{"broken", "t", "a,b\n", "this is no gnuplot\n", ""};
  if (!have_gnuplot()) return;
  const DrawnFigures failed = draw_figures({broken}, dir);
  CHECK(failed.files.empty());
  REQUIRE(failed.notes.size() == 1);
  CHECK(failed.notes[0].starts_with("broken was not drawn: gnuplot reported: "));
  const Figure hangs{"hangs", "t", "a,b\n", "pause 60\n", ""};
  const DrawnFigures late = draw_figures({hangs}, dir, {"gnuplot", std::chrono::seconds{1}});
  REQUIRE(late.notes.size() == 1);
  CHECK(late.notes[0] == "hangs was not drawn: gnuplot took more than 1 s");
}

}  // namespace
}  // namespace kvsim
