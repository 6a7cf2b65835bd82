// Contents of figures, read from the SVGs that the program draws for shipped scenarios: every mark
// is at a value of the figure's CSV, and every text is complete, on screen and on paper.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/report/chart/chart_parts.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"
#include "tests/support/svg_figure.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::Outcome;
using test::run_kvsim;
using test::SvgFigure;
using test::SvgMark;
using test::SvgText;
using test::text_of;
using test::Words;

std::string source(const std::string& path) { return (fs::path{KVSIM_SOURCE_DIR} / path).string(); }
std::string scenario(const std::string& name) { return source("scenarios/" + name + ".json"); }

/// Timings of matrix products in the layout of `validate measured`: made-up values over five powers
/// of ten.
void write_timings(const fs::path& folder) {
  fs::create_directories(folder);
  std::string csv = "gpu,source,model,op,dtype,m,n,k,tensor_parallel,time_us\n";
  for (int i = 0; i < 40; ++i) {
    const int m = 1 << (i % 14);
    const int n = 1024 << (i % 4);
    csv += fmt::format("A100-SXM-80G,aic-vllm-0.14.0,,,bf16,{},{},4096,1,{}\n", m, n,
                       4 + 3e-8 * m * n * 4096);
  }
  test::write(folder / "gemm.csv", csv);
}

/// Published metrics in the layout of `validate published`: made up.
void write_published(const fs::path& file) {
  std::string csv =
      "id,source,gpu,gpu_count,model,dtype,kv_dtype,framework,method,method_params,batch,"
      "prompt_len,output_len,metric,value,unit,note\n";
  for (int i = 0; i < 24; ++i) {
    const int batch = 1 << (i % 4);
    csv += fmt::format(
        "MY-{},{},A100-80GB-SXM,1,Llama-2-7B,fp16,fp16,HF transformers 4.47.1,full,,{},{},512,"
        "throughput_tok_s,{},tok/s,\n",
        i, i % 2 == 0 ? "a paper" : "another paper", batch, 512 << (i / 4 % 3), 20 * batch + i);
  }
  test::write(file, csv);
}

/// Task scores in the layout of `kvsim quality`: made up.
void write_scores(const fs::path& file) {
  std::string csv =
      "id,source,model,model_params_b,context_tokens,task,metric,method,method_as_published,budget,"
      "budget_unit,bits,when,score,score_full,n_samples,stderr,note\n";
  const std::array methods{"snapkv", "h2o", "streaming-llm"};
  for (int i = 0; i < 36; ++i) {
    const char* method = methods.at(static_cast<std::size_t>(i % 3));
    const double budget = 0.1 * (1 + i / 3 % 4);
    csv += fmt::format(
        "q{},made up,model-{},8,8192,longbench/t{},f1,{},{},{:g},fraction,,prefill,{:.2f},40,200,"
        "1.5,\n",
        i, i / 12, i % 4, method, method, budget, 40 - 6 * (1 - budget) - i % 5);
  }
  test::write(file, csv);
}

/// Measured services in the layout of `validate served`: made up.
void write_served(const fs::path& file) {
  std::string csv =
      "run_id,source,date,gpu,gpu_count,tp,pp,ep_dp,model,weight_dtype,kv_dtype,engine,"
      "engine_version,engine_options,workload,input_tokens,input_spread,output_tokens,"
      "output_spread,arrival,rate_rps,concurrency,num_requests,seed,metric,stat,value,unit,"
      "not_stated,note\n";
  constexpr int kLoads = 12;
  for (int i = 0; i < 4 * kLoads; ++i) {
    const int load = i % kLoads;
    const int rate = 2 + 3 * load;
    const auto row = [&](const char* metric, double value, const char* unit) {
      csv += fmt::format(
          "r{},own/bench{}.csv,2025-10,H100-80GB-SXM,1,1,1,,meta-llama/Llama-3.1-8B-Instruct,bf16,"
          "auto,vLLM,0.11.0,max_num_seqs=64,random,1000,fixed,100,fixed,poisson,{},,200,0,{},mean,"
          "{},{},,\n",
          i, i / kLoads, rate, metric, value, unit);
    };
    row("ttft", 45 + 5 * load, "ms");
    row("tpot", 8 + 0.8 * load, "ms");
    row("e2e", 850 + 90 * load, "ms");
    row("output_throughput", 98 * rate, "tok/s");
  }
  test::write(file, csv);
}

/// Draws results of every kind that has figures: folders under `folder`, each with figures/.
std::vector<fs::path> draw_all(const fs::path& folder) {
  const std::string trace = source("traces/samples/books-treasure-512.safetensors");
  const std::vector<std::pair<std::string, Words>> commands{
      {"static", {"run", scenario("zeromerge-a800")}},
      {"sizes", {"run", scenario("kv-sizes")}},
      {"two-gpus", {"run", scenario("a100-vs-h200")}},
      {"service", {"run", scenario("serve-azure-code")}},
      {"long-service", {"run", scenario("serve-mooncake")}},
      {"replay", {"run", scenario("replay-sample")}},
      {"plan", {"plan", scenario("plan-h100-longcontext")}},
      {"plan-service",
       {"plan", scenario("sweep-rates"), "--set", "/requests/count=60", "--set",
        R"(/plan={"questions": ["fewest_gpus", "highest_rate"]})"}},
      {"plan-open-end",  // the safe end exceeds the searched number of GPUs
       {"plan", "--model", "llama-3.1-8b", "--gpu", "a100-80gb-sxm", "--rate", "60", "--isl", "600",
        "--osl", "60", "--ttft", "500ms", "--tpot", "50ms", "--set", "/requests/count=300", "--set",
        "/plan/most_gpus=4"}},
      {"sweep-methods", {"sweep", scenario("sweep-methods")}},
      {"sweep-rates", {"sweep", scenario("sweep-rates"), "--set", "/requests/count=120"}},
      {"sweep-two-numbers",
       {"sweep", scenario("sweep-methods"), "--set", "/method=h2o", "--set", "/gpu=H100-80GB-SXM",
        "--vary", "/batch=1,2,4,8", "--vary", "/prompt_tokens=4096,16384,65536"}},
      {"sweep-replays",
       {"sweep", "-t", trace, "-m", "h2o,zeromerge", "-b", "0.1,0.2", "--vary", "recent=0.2,0.5"}},
      {"measured", {"validate", "measured", "timings"}},
      {"published", {"validate", "published", "published.csv"}},
      {"kernels", {"validate", "kernels"}},
      {"quality", {"quality", "scores.csv"}},
      {"served", {"validate", "served", "served.csv"}},
      {"other-gpu", {"run", scenario("zeromerge-a800"), "--set", "/gpu=H100-80GB-SXM"}},
      {"overlay", {"plot", "static", "other-gpu", "--figure", "memory_vs_length"}},
  };
  write_scores(folder / "scores.csv");
  write_served(folder / "served.csv");
  write_timings(folder / "timings");
  write_published(folder / "published.csv");
  std::vector<fs::path> out;
  for (const auto& [name, words] : commands) {
    Words all = words;
    all.insert(all.end(), {"-o", name});
    const Outcome outcome = run_kvsim(all, folder);
    REQUIRE_MESSAGE(outcome.status == 0, fmt::format("{}: {}", name, outcome.err));
    const bool flat = words.front() == "plot" || words.front() == "quality";
    const fs::path figures = flat ? folder / name : folder / name / "figures";
    CHECK_MESSAGE(fs::is_directory(figures), name);
    if (fs::is_directory(figures)) out.push_back(figures);
  }
  return out;
}

/// The results, drawn once for all cases. Empty, with the reason, if gnuplot is missing.
const std::vector<fs::path>& all_results() {
  static const std::vector<fs::path> results = [] {
    if (std::system("gnuplot --version > /dev/null 2>&1") != 0) {
      fmt::print("KVSIM-SKIPPED: gnuplot is not installed\n");
      return std::vector<fs::path>{};
    }
    return draw_all(fresh("drawn"));
  }();
  return results;
}

/// The same figures for paper, `width` inches wide.
fs::path on_paper(const fs::path& figures, const std::string& width) {
  const fs::path out = figures.parent_path() / ("paper-" + width);
  if (fs::is_directory(out)) return out;
  const Outcome outcome = run_kvsim({"plot", figures.string(), "-o", out.string(), "--style",
                                     "paper", "--width", width, "--formats", "svg,pdf"},
                                    figures);
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  return out;
}

std::vector<std::string> figure_names(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator{folder}) {
    if (entry.path().extension() == ".svg") out.push_back(entry.path().stem().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// The plot's rectangle on the canvas and the values at its edges, as set by the script.
struct PlotBox {
  double left = 0, right = 0, top = 0, bottom = 0;  // pixels
  double x_low = 0, x_high = 0, y_low = 0, y_high = 0;
  bool log_x = false, log_y = false;

  [[nodiscard]] double pixel_x(double x) const {
    return left + share(x, x_low, x_high, log_x) * (right - left);
  }
  [[nodiscard]] double pixel_y(double y) const {
    return bottom + share(y, y_low, y_high, log_y) * (top - bottom);
  }
  [[nodiscard]] bool holds(const SvgMark& mark) const {
    constexpr double kEdge = 0.5;
    return mark.x >= left - kEdge && mark.x <= right + kEdge && mark.y >= top - kEdge &&
           mark.y <= bottom + kEdge;
  }

 private:
  static double share(double value, double low, double high, bool log) {
    return log ? std::log(value / low) / std::log(high / low) : (value - low) / (high - low);
  }
};
PlotBox box_of(const std::string& script, const SvgFigure& svg) {
  const auto value = [&](const std::string& before) {
    return test::svg::number(test::svg::between(script, before, "\n"));
  };
  const auto range = [&](const std::string& axis) {
    const std::string text = test::svg::between(script, "set " + axis + "range [", "]");
    const std::size_t colon = text.find(':');
    return std::pair{test::svg::number(text), test::svg::number(text.substr(colon + 1))};
  };
  PlotBox box{.left = value("set lmargin at screen ") * svg.width,
              .right = value("set rmargin at screen ") * svg.width,
              .top = (1 - value("set tmargin at screen ")) * svg.height,
              .bottom = (1 - value("set bmargin at screen ")) * svg.height};
  std::tie(box.x_low, box.x_high) = range("x");
  std::tie(box.y_low, box.y_high) = range("y");
  const std::string log = test::svg::between(script, "set logscale ", "\n");
  box.log_x = log.find('x') != log.npos;
  box.log_y = log.find('y') != log.npos || script.find("set logscale y") != script.npos;
  return box;
}

/// Positions of the values in the figure's CSV, in the axes' units, by series.
std::map<int, std::vector<std::pair<double, double>>> values_of(const std::string& csv,
                                                                const json& chart) {
  const std::string kind = chart.at("chart").get<std::string>();
  const double x_scale = chart.value("x_scale", 1.0), y_unit = chart.value("y_unit", 1.0);
  std::map<int, std::vector<std::pair<double, double>>> out;
  std::istringstream in{csv};
  std::string row;
  std::getline(in, row);  // names
  while (std::getline(in, row)) {
    std::vector<double> cells;
    std::istringstream fields{row};
    for (std::string cell; cells.size() < 4 && std::getline(fields, cell, ',');) {
      cells.push_back(test::svg::number(cell));
    }
    if (cells.size() < 3) continue;
    const int series = static_cast<int>(cells[0]);
    if (kind == "lines") {
      const bool is_spread = cells[1] == 3 || cells[1] == 4;
      if (!is_spread) out[series].emplace_back(cells[2], cells[3] / y_unit);
    } else if (kind == "scatter" || kind == "parity") {
      out[series].emplace_back(cells[1] * x_scale, cells[2]);
    }
  }
  return out;
}

void check_marks() {
  constexpr double kNear = 0.75;  // pixels: gnuplot rounds positions to hundredths of its units
  std::map<std::string, std::size_t> marks;  // by kind of chart
  for (const fs::path& results : all_results()) {
    for (const fs::path& folder : {results, on_paper(results, "3.3"), on_paper(results, "6.9")}) {
      for (const std::string& name : figure_names(folder)) {
        INFO(folder, " ", name);
        const SvgFigure svg = test::read_svg(text_of(folder / (name + ".svg")));
        const PlotBox box = box_of(text_of(folder / (name + ".gp")), svg);
        const json chart = json::parse(text_of(folder / (name + ".figure.json")));
        const std::string kind = chart.at("chart").get<std::string>();
        const auto values = values_of(text_of(folder / (name + ".csv")), chart);
        std::set<int> marked;
        for (const SvgMark& mark : svg.marks) {
          if (!box.holds(mark)) continue;  // in the legend
          double nearest = INFINITY;
          for (const auto& [series, points] : values) {
            for (const auto& [x, y] : points) {
              const double off = std::hypot(box.pixel_x(x) - mark.x, box.pixel_y(y) - mark.y);
              if (off < kNear) marked.insert(series);
              nearest = std::min(nearest, off);
            }
          }
          const bool is_at_a_value = nearest < kNear;
          CHECK_MESSAGE(is_at_a_value, fmt::format("mark at {:.1f}, {:.1f}: {:.1f} pixels off",
                                                   mark.x, mark.y, nearest));
          ++marks[kind];
        }
        if (kind != "lines") continue;
        const json& lines = chart.at("lines");
        for (std::size_t i = 0; i < lines.size(); ++i) {
          if (!lines[i].value("has_marks", true) || !lines[i].contains("points")) continue;
          CHECK_MESSAGE(marked.contains(static_cast<int>(i)), "line ", i, " has no mark");
        }
      }
    }
  }
  if (all_results().empty()) return;  // no gnuplot
  for (const char* kind : {"lines", "scatter", "parity"}) CHECK_MESSAGE(marks[kind] > 20, kind);
  CHECK(marks["bars"] + marks["area"] + marks["heat_map"] == 0);
}

struct Box {
  double left, right, top, bottom;
};
/// Bounding box of a text: widths of DejaVu Sans, and its ascent and descent for capitals and
/// digits.
Box extent_of(const SvgText& text) {
  constexpr double kAbove = 0.76, kBelow = 0.24;  // em
  const double width = chart::text_pixels(text.text) * text.size / chart::kFont;
  const double before = text.anchor == "middle" ? width / 2 : text.anchor == "end" ? width : 0;
  if (text.is_upright) {
    return {text.x - before, text.x - before + width, text.y - kAbove * text.size,
            text.y + kBelow * text.size};
  }
  return {text.x - kAbove * text.size, text.x + kBelow * text.size, text.y + before - width,
          text.y + before};
}

void check_texts() {
  std::size_t texts = 0;
  for (const fs::path& results : all_results()) {
    for (const fs::path& folder : {results, on_paper(results, "3.3"), on_paper(results, "6.9")}) {
      for (const std::string& name : figure_names(folder)) {
        INFO(folder, " ", name);
        const SvgFigure svg = test::read_svg(text_of(folder / (name + ".svg")));
        std::vector<Box> boxes;
        std::vector<SvgText> shown;  // gnuplot draws texts with a background twice
        for (const SvgText& text : svg.texts) {
          const bool again = std::any_of(shown.begin(), shown.end(), [&](const SvgText& other) {
            return other.text == text.text && other.x == text.x && other.y == text.y;
          });
          if (again) continue;
          shown.push_back(text);
          const Box at = extent_of(text);
          const bool is_inside =
              at.left >= 0 && at.right <= svg.width && at.top >= 0 && at.bottom <= svg.height;
          CHECK_MESSAGE(is_inside, fmt::format("\"{}\" from {:.0f}, {:.0f} to {:.0f}, {:.0f} of "
                                               "{:.0f}, {:.0f}",
                                               text.text, at.left, at.top, at.right, at.bottom,
                                               svg.width, svg.height));
          boxes.push_back(at);
          ++texts;
        }
        for (std::size_t i = 0; i < boxes.size(); ++i) {
          for (std::size_t j = 0; j < i; ++j) {
            constexpr double kShared = 1.5;  // maximum overlap in pixels of separate texts
            const Box &a = boxes[i], &b = boxes[j];
            const bool overlap = a.left + kShared < b.right && b.left + kShared < a.right &&
                                 a.top + kShared < b.bottom && b.top + kShared < a.bottom;
            CHECK_MESSAGE(!overlap,
                          fmt::format("\"{}\" touches \"{}\"", shown[i].text, shown[j].text));
          }
        }
      }
    }
  }
  if (!all_results().empty()) CHECK(texts > 1000);
}

/// A word on a page of PDF and its position, from pdftotext.
struct PdfWord {
  std::string text;
  Box at;
};
struct PdfPage {
  double width = 0, height = 0;
  std::vector<PdfWord> words;
};
PdfPage read_pdf(const fs::path& file) {
  const fs::path out = file.string() + ".html";
  const std::string command = fmt::format("pdftotext -bbox '{}' '{}'", file.string(), out.string());
  REQUIRE_MESSAGE(std::system(command.c_str()) == 0, command);
  const std::string html = text_of(out);
  const auto attribute = [&](const char* name, std::size_t from) {
    return test::svg::number(test::svg::between(html, fmt::format(" {}=\"", name), "\"", from));
  };
  const std::size_t page_at = html.find("<page ");
  PdfPage page{attribute("width", page_at), attribute("height", page_at), {}};
  for (std::size_t at = page_at; (at = html.find("<word ", at)) != html.npos; ++at) {
    page.words.push_back({test::svg::between(html, ">", "</word>", at),
                          {.left = attribute("xMin", at),
                           .right = attribute("xMax", at),
                           .top = attribute("yMin", at),
                           .bottom = attribute("yMax", at)}});
  }
  return page;
}

void check_pdfs() {
  if (std::system("pdftotext -v > /dev/null 2>&1") != 0) {
    fmt::print("KVSIM-SKIPPED: pdftotext is not installed\n");
    return;
  }
  std::size_t words = 0;
  for (const fs::path& results : all_results()) {
    for (const fs::path& folder : {on_paper(results, "3.3"), on_paper(results, "6.9")}) {
      for (const std::string& name : figure_names(folder)) {
        INFO(folder, " ", name);
        const PdfPage page = read_pdf(folder / (name + ".pdf"));
        words += page.words.size();
        for (std::size_t i = 0; i < page.words.size(); ++i) {
          const auto& [text, a] = page.words[i];
          const bool is_inside =
              a.left >= 0 && a.right <= page.width && a.top >= 0 && a.bottom <= page.height;
          CHECK_MESSAGE(is_inside, text);
          for (std::size_t j = 0; j < i; ++j) {
            // In points: boxes have the font's full height, and digits leave a quarter of it blank.
            constexpr double kAcross = 0.8, kUp = 2.2;
            const Box& b = page.words[j].at;
            const bool overlap = a.left + kAcross < b.right && b.left + kAcross < a.right &&
                                 a.top + kUp < b.bottom && b.top + kUp < a.bottom;
            const bool again =
                text == page.words[j].text;  // gnuplot draws texts with a background twice
            CHECK_MESSAGE((!overlap || again), text, " touches ", page.words[j].text);
          }
        }
      }
    }
  }
  if (!all_results().empty()) CHECK(words > 1000);
}

/// The first value of a distribution is a data value, not the foot of its step.
void check_distributions() {
  std::size_t found = 0;
  for (const fs::path& folder : all_results()) {
    for (const std::string& name : figure_names(folder)) {
      if (name.find("_cdf") == std::string::npos) continue;
      INFO(folder, " ", name);
      const json chart = json::parse(text_of(folder / (name + ".figure.json")));
      CHECK(chart.at("steps") == true);
      for (const json& line : chart.at("lines")) {
        const json& points = line.at("points");
        CHECK(points.front()[1] > 0);
        CHECK(points.back()[1] == 100);
        ++found;
      }
      const std::string script = text_of(folder / (name + ".gp"));
      CHECK(script.find(" with steps ") != std::string::npos);
    }
  }
  if (!all_results().empty()) CHECK(found > 4);
}

/// The ranges in a plan's figures equal the ends in plan.json.
void check_plan_ranges() {
  std::size_t found = 0;
  for (const fs::path& folder : all_results()) {
    const fs::path document = folder.parent_path() / "plan.json";
    if (!fs::exists(document)) continue;
    std::set<std::pair<double, double>> ends;
    const json plan = json::parse(text_of(document));
    for (const json& answer : plan.at("answers")) {
      for (const json& one : answer.at("candidates")) {
        if (one.at("safe").is_null() || one.at("optimistic").is_null()) continue;
        const double safe = one.at("safe"), optimistic = one.at("optimistic");
        ends.insert({std::min(safe, optimistic), std::max(safe, optimistic)});
      }
    }
    for (const std::string& name : figure_names(folder)) {
      if (!name.starts_with("answers_")) continue;
      std::istringstream rows{text_of(folder / (name + ".csv"))};
      for (std::string row; std::getline(rows, row);) {
        std::vector<std::string> cells;
        std::istringstream fields{row};
        for (std::string cell; std::getline(fields, cell, ',');) cells.push_back(cell);
        if (cells.back() != "safe to optimistic") continue;
        INFO(folder, " ", name, ": ", row);
        CHECK(ends.contains({test::svg::number(cells[3]), test::svg::number(cells[4])}));
        ++found;
      }
    }
  }
  if (!all_results().empty()) CHECK(found > 8);
}

/// A range with a missing end is printed as text next to the bar.
void check_open_ranges() {
  for (const fs::path& folder : all_results()) {
    if (folder.parent_path().filename() != "plan-open-end") continue;
    const json plan = json::parse(text_of(folder.parent_path() / "plan.json"));
    const json& one = plan.at("answers").at(0).at("candidates").at(0);
    CHECK(one.at("safe").is_null());
    CHECK(one.at("range") == "3 to more than 4");
    const json chart = json::parse(text_of(folder / "answers_fewest_gpus.figure.json"));
    CHECK(chart.at("bars").at(1).at("end_text") == "4, range 3 to more than 4");
    CHECK_FALSE(chart.at("bars").at(1).contains("range"));
    const std::string csv = text_of(folder / "answers_fewest_gpus.csv");
    CHECK(csv.find("safe to optimistic") == std::string::npos);
  }
}

/// Names of the axes in a figure's document.
std::vector<std::string> axis_names(const json& chart) {
  std::vector<std::string> out;
  for (const char* key : {"x_label", "y_label", "z_label"}) {
    if (chart.contains(key)) out.push_back(chart.at(key).get<std::string>());
  }
  return out;
}

void check_axes() {
  // Counts whose name is their unit.
  const std::set<std::string> kCounts{"layer", "decode step", "requests running",
                                      "requests waiting"};
  std::size_t axes = 0;
  for (const fs::path& folder : all_results()) {
    for (const std::string& name : figure_names(folder)) {
      INFO(folder, " ", name);
      const json chart = json::parse(text_of(folder / (name + ".figure.json")));
      for (const std::string& axis : axis_names(chart)) {
        const bool is_of_words = chart.at("chart") == "heat_map";
        const bool has_unit =
            axis.ends_with(')') || kCounts.contains(axis) || chart.value("log_seconds_x", false);
        CHECK_MESSAGE((has_unit || is_of_words), axis);
        CHECK_MESSAGE(!axis.ends_with("(parameter)"), axis);
        ++axes;
      }
      for (const SvgText& text : test::read_svg(text_of(folder / (name + ".svg"))).texts) {
        CHECK_MESSAGE(text.text.find("e+") == std::string::npos, text.text);
        CHECK_MESSAGE(text.text != "%", "apart from its number");
        const bool counts = chart.at("x_label").get<std::string>().ends_with("(count)");
        if (counts) CHECK_MESSAGE(!text.text.ends_with(".0"), text.text);
      }
      if (chart.at("chart") == "area") {  // white on white would be invisible
        const std::string script = text_of(folder / (name + ".gp"));
        CHECK(script.find("border rgb '#222222' lc rgb '#FFFFFF' title 'free'") !=
              std::string::npos);
      }
    }
  }
  if (!all_results().empty()) CHECK(axes > 20);
}

// A single case, because the figures are drawn once.
TEST_CASE("figures of shipped scenarios") {
  SUBCASE("every mark is at a value of the CSV") { check_marks(); }
  SUBCASE("every text is inside the page and clear of the others") { check_texts(); }
  SUBCASE("every text of a PDF is inside the page and clear of the others") { check_pdfs(); }
  SUBCASE("distributions rise in steps from their first value") { check_distributions(); }
  SUBCASE("ranges of a plan's figures are those of plan.json") { check_plan_ranges(); }
  SUBCASE("a plan's figure draws no end of a range that does not exist") { check_open_ranges(); }
  SUBCASE("every axis has a unit, and its ticks are plain numbers") { check_axes(); }
}

}  // namespace
}  // namespace kvsim
