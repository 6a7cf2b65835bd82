// kvsim compare: the figures that differ between results.

#include "sim/cli/explain/command_compare.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <ranges>
#include <string_view>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/batch/static_metrics.hpp"
#include "sim/cli/explain/compare_bench.hpp"
#include "sim/cli/explain/compare_results.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/replay/replay_metrics.hpp"
#include "sim/report/plan/plan_metrics.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "sim/serve/account/service_metrics.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using Align = Table::Align;

constexpr double kPercent = 100;

/// The metric of a figure: ttft_s for "ttft_s.p99" and "run.ttft_s_low". nullptr if there is none.
const MetricInfo* metric_of_figure(std::string_view figure) {
  static const std::array kTables{infos_of(static_metrics()), infos_of(service_metrics()),
                                  infos_of(replay_metrics()), infos_of(candidate_metrics()),
                                  infos_of(operating_point_metrics())};
  for (const auto name : std::views::split(figure, '.')) {
    std::string_view part{name.begin(), name.end()};
    for (const std::string_view end : {"_low", "_high"}) {
      if (part.ends_with(end)) part.remove_suffix(end.size());
    }
    for (const MetricInfos& table : kTables) {
      if (const MetricInfo* info = find_info(table, part)) return info;
    }
  }
  return nullptr;
}

/// The unit of a figure: its metric's unit, or the suffix of its name.
std::string_view unit_of(std::string_view figure) {
  if (const MetricInfo* info = metric_of_figure(figure)) return info->unit;
  if (figure.find("owners.") != std::string_view::npos || figure.ends_with("_bytes")) return "B";
  return figure.ends_with("_s") ? "s" : "";
}

std::string value_text(const std::string& figure, const ordered_json& value) {
  if (value.is_null()) return "-";
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_number()) return value.dump();
  const double number = value.get<double>();
  const std::string_view unit = unit_of(figure);
  constexpr double kMaxBytes = 9e18;
  if (unit == "B" && number >= 0 && number < kMaxBytes) {
    return to_text(Bytes{std::llround(number)});
  }
  if (unit == "s") return number < 0 ? fmt::format("{:.4g} s", number) : to_text(Seconds{number});
  if (value.is_number_integer()) return with_commas(value.get<std::int64_t>());
  return fmt::format("{:.5g}", number);
}

std::string change_text(const FigureChange& change) {
  if (!change.relative) return "";
  if (!std::isfinite(*change.relative)) return "from 0";
  return fmt::format("{:+.3g} %", kPercent * *change.relative);
}

/// Whether a figure, such as an interval's end or an owner's share, is shown only with --all.
bool is_detail(const std::string& figure) {
  return figure.ends_with("_low") || figure.ends_with("_high") ||
         figure.find('.') != std::string::npos;
}

std::string comparison_text(const Comparison& c, double tolerance, bool all, std::size_t width) {
  std::string out = fmt::format("A  {}\nB  {}\n", clean_text(c.before), clean_text(c.after));
  for (const std::string& note : c.notes) out += fmt::format("note: {}", paragraph(note, width, 6));
  Table table{{{"figure", Align::kLeft}, {"A"}, {"B"}, {"change"}}};
  std::size_t hidden = 0;
  std::size_t moved = 0;
  for (const PointChange& point : c.changed) {
    const bool details = all || std::all_of(point.figures.begin(), point.figures.end(),
                                            [](const auto& one) { return is_detail(one.figure); });
    table.add_section(point.label);
    moved += point.figures.size();
    for (const FigureChange& change : point.figures) {
      if (!details && is_detail(change.figure)) {
        ++hidden;
        continue;
      }
      table.add_row({fmt::format("  {}", change.figure),
                     shortened(value_text(change.figure, change.before), width / 5),
                     shortened(value_text(change.figure, change.after), width / 5),
                     change_text(change)});
    }
  }
  if (!c.changed.empty()) out += fmt::format("\n{}\n", table.str(width));
  for (const auto& [names, where] :
       {std::pair{&c.only_before, 'A'}, std::pair{&c.only_after, 'B'}}) {
    for (const std::string& name : *names) {
      out += paragraph(fmt::format("only in {}: {}", where, name), width, 2);
    }
  }
  out += paragraph(
      fmt::format("{} of {} figures of {} point{} in both differ{}{}.", moved, c.figures, c.points,
                  c.points == 1 ? "" : "s",
                  tolerance > 0 ? fmt::format(" by more than {:g} %", kPercent * tolerance) : "",
                  hidden > 0 ? fmt::format("; {} of them are shown with --all", hidden) : ""),
      width);
  return out;
}

ordered_json comparison_json(const Comparison& c) {
  ordered_json out{{"before", c.before}, {"after", c.after},     {"notes", c.notes},
                   {"points", c.points}, {"figures", c.figures}, {"moved", c.moved()}};
  out["changed"] = ordered_json::array();
  for (const PointChange& point : c.changed) {
    ordered_json figures = ordered_json::array();
    for (const FigureChange& change : point.figures) {
      ordered_json one{{"figure", change.figure},
                       {"before", change.before},
                       {"after", change.after},
                       {"relative", nullptr}};
      if (change.relative && std::isfinite(*change.relative)) one["relative"] = *change.relative;
      figures.push_back(std::move(one));
    }
    out["changed"].push_back({{"point", point.label}, {"figures", std::move(figures)}});
  }
  out["only_before"] = c.only_before;
  out["only_after"] = c.only_after;
  return out;
}

int compare_with_bench(const Arguments& arguments) {
  const std::vector<std::string>& words = arguments.words();
  std::vector<BenchComparison> all;
  for (std::size_t i = 1; i < words.size(); ++i) {
    for (BenchComparison& one : compare_bench_files(words[0], words[i])) {
      all.push_back(std::move(one));
    }
  }
  write_out(arguments.has("json") ? to_file_text(bench_comparison_json(all))
                                  : bench_comparison_text(all, terminal_width()));
  return kDone;
}

int run_compare(const Arguments& arguments) {
  constexpr std::size_t kMaxResults = 64;
  arguments.expect_words(2, kMaxResults, "two results or more, or a result and a benchmark's file");
  if (is_bench_file(arguments.words()[1])) return compare_with_bench(arguments);
  const double tolerance = arguments.number("tolerance", 0, 1).value_or(0);
  std::vector<ResultItems> results;
  for (const std::string& word : arguments.words()) results.push_back(read_result_items(word));
  ordered_json documents = ordered_json::array();
  std::string text;
  bool moved = false;
  for (std::size_t i = 1; i < results.size(); ++i) {
    const Comparison comparison = compare_results(results[0], results[i], tolerance);
    // Results without a common figure are different.
    moved = moved || comparison.moved() || comparison.figures == 0;
    documents.push_back(comparison_json(comparison));
    if (i > 1) text += "\n";
    text += comparison_text(comparison, tolerance, arguments.has("all"), terminal_width());
  }
  if (arguments.has("json")) {
    write_out(to_file_text(ordered_json{{"schema", "kvsim.compare/1"},
                                        {"tolerance", tolerance},
                                        {"moved", moved},
                                        {"comparisons", std::move(documents)}}));
  } else {
    write_out(text);
  }
  // With a tolerance, the exit status reports whether anything changed.
  return moved && arguments.has("tolerance") ? kDoesNotFit : kDone;
}

}  // namespace

Command compare_command() {
  return {.name = "compare",
          .summary = "compare results: the figures that differ, and by how much",
          .usage =
              "kvsim compare RESULT RESULT… [options]\n"
              "kvsim compare RESULT BENCH… [--json]\n"
              "  RESULT  a results folder, or its result.json, plan.json or sweep.json;\n"
              "          each is compared with the first\n"
              "  BENCH   a file of vllm bench serve, SGLang, AIPerf, GuideLLM or\n"
              "          inference-perf: measured values next to those of a service",
          .examples =
              "kvsim compare kvsim-out/before kvsim-out/after\n"
              "kvsim compare golden/result.json kvsim-out/my --tolerance 0.01\n"
              "kvsim compare kvsim-out/service bench.json",
          .options = {{"tolerance", 't', "REL", false,
                       "ignore differences up to this share of the larger number; exit status 1 if "
                       "any is larger"},
                      {"all", 'a', "", false, "ends of intervals and nested figures too"},
                      {"json", 0, "", false,
                       "print JSON (schema kvsim.compare/1, kvsim.compare-bench/1)"}},
          .run = run_compare};
}

}  // namespace kvsim
