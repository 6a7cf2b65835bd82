// report.html: user-supplied text stays in its place, the same run produces the same bytes, and
// each kind of run has the data of its charts.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/gpu/gpu.hpp"
#include "sim/report/chart/chart.hpp"
#include "sim/report/chart/figure_page.hpp"
#include "sim/report/folder/page_parts.hpp"
#include "sim/report/folder/results_folder.hpp"
#include "sim/report/html/page.hpp"
#include "sim/report/run/run_document.hpp"
#include "sim/report/run/run_figures.hpp"
#include "sim/report/run/run_folder.hpp"
#include "sim/report/run/run_page.hpp"
#include "tests/sim/report/report_samples.hpp"
#include "tests/sim/serve/serve_samples.hpp"
#include "tests/support/check.hpp"
#include "tests/support/scratch.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::size_t count_of(const std::string& text, const std::string& what) {
  std::size_t n = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++n;
  return n;
}

/// The data block as parsed by a browser's HTML parser: up to the first "</script".
std::string data_block(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"kvsim-report\">";
  const std::size_t begin = page.find(open);
  REQUIRE(begin != std::string::npos);
  const std::size_t from = begin + open.size();
  return page.substr(from, page.find("</script", from) - from);
}
ordered_json data_in(const std::string& page) { return ordered_json::parse(data_block(page)); }

const std::vector<std::string>& hostile_texts() {
  static const std::vector<std::string> texts{"</script><script>alert(1)</script>",
                                              "<!--<script>",
                                              "]]>",
                                              "</SCRIPT >",
                                              "a\xE2\x80\xA8"
                                              "b\xE2\x80\xA9"
                                              "c",
                                              "\"'&<>\\",
                                              "{{data}}{{echarts.min}}",
                                              "</title><img src=x onerror=alert(1)>",
                                              "\x01\x02\t\n\r",
                                              "\xF0\x9F\x98\x80 \xC3\xA9"};
  return texts;
}

std::string page_of(const RunReport& report) {
  return run_page(report, run_document(report), run_figures(report));
}

std::string read(const fs::path& file) {
  std::ifstream in{file, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

TEST_CASE("page data parses back to equal data for any text") {
  for (const std::string& text : hostile_texts()) {
    INFO(text);
    const ordered_json data{{text, {text, 1.5, nullptr}}, {"b", -0.1}};
    const std::string block = script_json(data);
    CHECK(ordered_json::parse(block) == data);
    for (const char c : block) {
      CHECK(static_cast<unsigned char>(c) < 0x7F);
      CHECK((c != '<' && c != '>' && c != '&'));
    }
  }
  // Bytes that are not UTF-8 still produce a page.
  CHECK(ordered_json::parse(script_json({{"a", "\xFF"}})).at("a") == "\xEF\xBF\xBD");
}

TEST_CASE("no title, label or note opens or closes an element of the page") {
  const std::size_t scripts = count_of(page_text({.title = "t", .data = {{"a", 1}}}), "<script");
  CHECK(scripts == 4);  // data, chart library, code shared by pages, code of the page
  for (const std::string& text : hostile_texts()) {
    INFO(text);
    const Page page{.title = text,
                    .lead = text,
                    .sentences = {{text, PageSentence::Tone::kFails}, {text}},
                    .summary = text,
                    .data = {{"title", text}}};
    const std::string html = page_text(page);
    CHECK(count_of(html, "<script") == scripts);
    CHECK(count_of(html, "<img src=x") == 0);
    CHECK(data_in(html) == page.data);
    // Insertion happens only once: the page contains the library once.
    CHECK(count_of(html, "id=\"kvsim-report\"") == 1);
    CHECK(html.size() < page_text({.title = "t"}).size() + 16 * text.size() + 400);
  }
}

TEST_CASE("a run with hostile names gives a page with intact data") {
  for (const std::string& text : hostile_texts()) {
    INFO(text);
    Scenario scenario = test::sample_scenario();
    scenario.title = text;
    scenario.description = text;
    scenario.notes.push_back(text);
    const RunReport report = test::sample_report(scenario);
    const ordered_json data = data_in(page_of(report));
    CHECK(data.at("document").at("scenario").at("title") == text);
    CHECK(data.at("document").at("notes").back() == text);
  }
}

TEST_CASE("a thinned line keeps the intervals of its remaining points") {
  // A run that runs out of memory has one more point than its band: 801 points are drawn at every
  // third, whereas 800 would be drawn at every second.
  LineChart chart{.name = "memory_vs_length", .x_column = "tokens", .y_column = "hbm_bytes"};
  chart.lines.push_back({.label = "full"});
  ChartLine& line = chart.lines.back();
  for (int i = 0; i <= 800; ++i) line.points.push_back({1.0 * i, 100.0 + i});
  for (int i = 0; i < 800; ++i) line.band.push_back({1.0 * i, 90.0 + i, 110.0 + i});
  const ordered_json series = page_chart(chart).at("series").at(0);
  CHECK(series.at("values").size() == 268);
  CHECK(series.at("band").size() == 268);
  for (std::size_t k = 0; k + 1 < series.at("values").size(); ++k) {
    const double x = series.at("values")[k][0];
    CHECK(series.at("band")[k] == ordered_json::array({x, 90 + x, 110 + x}));
  }
  CHECK(series.at("band").back()[0] == 799);
}

TEST_CASE("a page needs no network and forbids it in its policy") {
  const Scenario scenario = test::sample_scenario();
  const std::string html = page_of(test::sample_report(scenario));
  CHECK(html.find("default-src 'none'") != std::string::npos);
  for (const char* never : {"<link", "src=\"http", "href=\"http", "@import", "url(http"}) {
    INFO(never);
    CHECK(html.find(never) == std::string::npos);
  }
  CHECK(html.find("Apache License 2.0") != std::string::npos);
}

TEST_CASE("the same run gives the same page and a folder has it unless disabled") {
  const fs::path dir = test::scratch_folder() / "page";
  fs::remove_all(dir);
  const Scenario scenario = test::sample_scenario();
  const RunReport report = test::sample_report(scenario);
  const FolderOptions plain{.figures = false, .gnuplot = {}};
  const FolderOptions without{.figures = false, .gnuplot = {}, .page = false};
  CHECK(write_run_results(report, run_document(report), dir / "a", plain).page);
  (void)write_run_results(report, run_document(report), dir / "b", plain);
  CHECK_FALSE(write_run_results(report, run_document(report), dir / "c", without).page);
  CHECK(read(dir / "a" / "report.html") == read(dir / "b" / "report.html"));
  CHECK(read(dir / "a" / "report.html").find(dir.string()) == std::string::npos);
  CHECK_FALSE(fs::exists(dir / "c" / "report.html"));
  // The page does not shorten the document next to it.
  CHECK(read(dir / "a" / "result.json") == read(dir / "c" / "result.json"));
}

TEST_CASE("a static run's page has its charts, rooflines, timelines and kept positions") {
  Scenario scenario = test::sample_scenario();
  for (ScenarioPoint& point : scenario.points) point.spec.gpu = &find_gpu("A800-80GB-SXM");
  const RunReport report = test::sample_report(scenario);
  const ordered_json data = data_in(page_of(report));
  CHECK(data.at("schema") == kPageSchema);
  CHECK(data.at("kind") == "static");
  std::vector<std::string> kinds;
  for (const auto& chart : data.at("charts")) kinds.push_back(chart.at("kind"));
  for (const char* kind :
       {"memory_vs_length", "hbm_breakdown", "throughput_vs_length", "error_vs_bytes"}) {
    INFO(kind);
    CHECK(std::find(kinds.begin(), kinds.end(), kind) != kinds.end());
  }
  REQUIRE(data.at("extras").at("points").size() == report.results.size());
  const auto& point = data.at("extras").at("points").at(0);
  CHECK(point.at("roof").at("gpu") == "A800-80GB-SXM");
  CHECK(point.at("roof").at("peak_flops").get<double>() == test::rel(312e12));
  CHECK(point.at("roof").at("bandwidth").get<double>() == test::rel(2.039e12));
  CHECK(point.at("timeline").at("tokens").size() == point.at("timeline").at("peak").size());
  CHECK(data.at("extras").at("kept").size() == report.replay->methods.size());
  // Steps of the replay are drawn from its charts and not stored again.
  CHECK_FALSE(data.at("document").at("replay").at("methods").at(0).contains("per_step"));
}

TEST_CASE("the first sentences state the failures in red") {
  const Scenario scenario = test::sample_scenario();
  const std::string html = page_of(test::sample_report(scenario));
  const std::size_t list = html.find("<ul class=\"verdict\"");
  REQUIRE(list != std::string::npos);
  const std::string words = html.substr(list, html.find("</ul>", list) - list);
  CHECK(words.find("of 4 points fit") != std::string::npos);
  CHECK(words.find("<li class=\"fails\">") != std::string::npos);
  CHECK(words.find("out of memory") != std::string::npos);
}

TEST_CASE("a service's page has its timeline by owner and its distributions") {
  const Scenario scenario = test::sample_serve_scenario();
  const RunReport report = test::sample_serve_report(scenario);
  const ordered_json data = data_in(page_of(report));
  CHECK(data.at("kind") == "serve");
  bool area = false;
  for (const auto& chart : data.at("charts")) {
    area = area || chart.at("spec").at("kind") == "area";
  }
  CHECK(area);
}

TEST_CASE("a page's size is bounded and omitted parts are reported") {
  Scenario scenario = test::sample_scenario();
  RunReport report = test::sample_report(scenario);
  constexpr std::size_t kMany = 2000;
  while (scenario.points.size() < kMany) {
    scenario.points.push_back(scenario.points[1]);
    scenario.points.back().keys["batch"] = scenario.points.size();
    report.results.push_back(report.results[1]);
  }
  const std::string html = run_page(report, run_document(report), FigureSet{});
  const ordered_json data = data_in(html);
  CHECK(data.at("document").at("points").size() < kMany);
  CHECK(data.at("left_out").size() >= 1);
  CHECK(html.size() < 6U << 20U);
}

TEST_CASE("a chart for a page has the figure's values in base units") {
  LineChart chart{.name = "memory_vs_length",
                  .x_label = "tokens per sequence (prompt and output)",
                  .y_label = "HBM (GiB)",
                  .x_column = "tokens",
                  .y_column = "peak_bytes",
                  .y_unit = 1024.0 * 1024.0 * 1024.0,
                  .end_label = "out of memory"};
  ChartLine line{.label = "full"};
  line.points = {{1000, 2e9}, {2000, 4e9}};
  line.end = {2500, 5e9};
  chart.lines.push_back(line);
  chart.levels.push_back({"usable HBM", 5e9});
  const ordered_json spec = page_chart(chart);
  CHECK(spec.at("x").at("unit") == "tokens");
  CHECK(spec.at("y").at("unit") == "B");
  CHECK(spec.at("y").at("name") == "HBM");
  CHECK(spec.at("series").at(0).at("values") ==
        ordered_json::array({{1000.0, 2e9}, {2000.0, 4e9}}));
  CHECK(spec.at("series").at(0).at("ends").at(0).at("text") == "out of memory");
  CHECK(spec.at("levels").at(0).at("value") == 5e9);
  // Thousands of points are thinned; the first and last are kept.
  ChartLine longer{.label = "long"};
  for (int i = 0; i < 5000; ++i) longer.points.push_back({1.0 + i, 1.0});
  chart.lines = {longer};
  const auto values = page_chart(chart).at("series").at(0).at("values");
  CHECK(values.size() <= 402);
  CHECK(values.front().at(0) == 1.0);
  CHECK(values.back().at(0) == 5000.0);
}

TEST_CASE("units of axes come from the columns' names") {
  const auto axis = [](const char* label, const char* column) {
    const PageAxis found = page_axis(label, column);
    return found.name + "|" + found.unit;
  };
  CHECK(axis("HBM (GiB)", "peak_bytes") == "HBM|B");
  CHECK(axis("latency of the batch (s)", "latency_s") == "latency of the batch|s");
  CHECK(axis("time to first token", "ttft_s") == "time to first token|s");
  CHECK(axis("longest context (thousand tokens)", "max_context") == "longest context|tokens");
  CHECK(axis("length, prompt and output (tokens)", "tokens") == "length, prompt and output|tokens");
  CHECK(axis("keys, values and side data (KiB)", "bytes_held") == "keys, values and side data|B");
  CHECK(axis("K, V and side data (% of the full cache)", "bytes_share") ==
        "K, V and side data (% of the full cache)|share");
  CHECK(axis("layer", "layer") == "layer|");
}

}  // namespace
}  // namespace kvsim
