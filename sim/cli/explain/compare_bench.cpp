#include "sim/cli/explain/compare_bench.hpp"

#include <array>
#include <utility>

#include <fmt/format.h>

#include "models/units/text_file.hpp"
#include "sim/cli/explain/compare_results.hpp"
#include "sim/report/text/table.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kLargest = 64U << 20U;

std::string shown(std::string_view metric, double value) {
  return metric.ends_with("tok_s") || metric == "request_s" ? fmt::format("{:.4g}", value)
                                                            : fmt::format("{:.4g}", 1e3 * value);
}

std::string metric_text(const BenchComparedValue& value) {
  static constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kWords{
      std::pair{"ttft_s", "TTFT, ms"},
      {"tpot_s", "TPOT, ms"},
      {"e2e_s", "E2E, ms"},
      {"output_tok_s", "output tokens/s"},
      {"request_s", "requests/s"}};
  std::string out = value.metric;
  for (const auto& [key, words] : kWords) {
    if (key == value.metric) out = words;
  }
  return value.stat.empty() ? out : fmt::format("{} {}", value.stat, out);
}

}  // namespace

bool is_bench_file(const fs::path& path) {
  std::error_code status;
  if (!fs::is_regular_file(path, status)) return false;
  const std::string text = read_text_file(path, kLargest);
  constexpr std::size_t kHead = 400;  // a result's schema is its first key
  const std::string_view head = std::string_view{text}.substr(0, kHead);
  return head.find("\"schema\"") == std::string_view::npos ||
         head.find("kvsim.") == std::string_view::npos;
}

std::vector<BenchComparison> compare_bench_files(const fs::path& result, const fs::path& file) {
  const fs::path document = result_document(result);
  const std::string predicted = read_text_file(document, kLargest);
  const std::string measured = read_text_file(file, kLargest);
  return compare_bench({.text = predicted, .place = document.string()},
                       {.text = measured, .place = file.string()});
}

std::string bench_comparison_text(const std::vector<BenchComparison>& all, std::size_t width) {
  Table table{{{"load", Table::Align::kLeft},
               {"metric", Table::Align::kLeft},
               {"measured"},
               {"predicted"},
               {"error %"},
               {"90 % interval"},
               {"in it"}}};
  std::size_t known = 0, in = 0;
  std::string notes;
  for (const BenchComparison& one : all) {
    for (const BenchComparedValue& value : one.values) {
      const bool has = value.low && value.high;
      known += has ? 1U : 0U;
      in += is_in_interval(value) ? 1U : 0U;
      table.add_row({one.load, metric_text(value), shown(value.metric, value.measured),
                     shown(value.metric, value.predicted),
                     fmt::format("{:+.1f}", 100 * (value.predicted / value.measured - 1)),
                     has ? fmt::format("{} to {}", shown(value.metric, *value.low),
                                       shown(value.metric, *value.high))
                         : "-",
                     has ? (is_in_interval(value) ? "yes" : "no") : "-"});
    }
    for (const std::string& note : one.notes) notes += fmt::format("- {}\n", note);
  }
  std::string text =
      fmt::format("measured by {}, next to the prediction\n{}", all.front().tool, table.str(width));
  if (known > 0) text += fmt::format("{} of {} values are in their interval.\n", in, known);
  return text + notes;
}

}  // namespace kvsim
