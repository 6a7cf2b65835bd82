#include "sim/cli/validate/kernels_report.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

using kernels::KernelResult;
using Align = Table::Align;

/// The error as a share of the allowed error; 0 if both are 0, infinite if only the allowed is 0.
double share_of_allowed(const KernelResult& r) {
  if (r.allowed > 0) return r.error / r.allowed;
  return r.error > 0 ? 1.0 / 0.0 : 0.0;
}

/// The cases of one line of the table.
struct Line {
  const KernelResult* first = nullptr;
  const KernelResult* worst = nullptr;  // by share of the allowed error
  std::size_t cases = 0, failed = 0, skipped = 0;
  Bytes counted{}, model{};
  bool is_counted = true;
};

std::vector<Line> lines_of(const KernelsScore& score, bool cases, bool by_dtype) {
  std::vector<Line> lines;
  for (const KernelResult& r : score.results) {
    auto at = cases ? lines.end() : std::find_if(lines.begin(), lines.end(), [&](const Line& l) {
      return l.first->name == r.name && (!by_dtype || l.first->dtype == r.dtype);
    });
    if (at == lines.end()) at = lines.insert(at, {.first = &r, .worst = &r});
    Line& line = *at;
    if (!(share_of_allowed(r) <= share_of_allowed(*line.worst))) line.worst = &r;
    ++line.cases;
    if (!r.pass) ++line.failed;
    if (!r.skipped.empty()) ++line.skipped;
    line.model += bytes_of(r.model);
    if (r.counted) line.counted += bytes_of(*r.counted);
    line.is_counted = line.is_counted && r.counted.has_value();
  }
  return lines;
}

std::string verdict(const Line& line) {
  if (line.failed > 0) return "FAIL";
  return line.skipped == line.cases ? "skipped" : "ok";
}

std::string error_text(const KernelResult& r) {
  return r.error == 0 ? "0" : fmt::format("{:.1e}", r.error);
}
std::string allowed_text(const KernelResult& r) {
  return r.allowed == 0 ? "0" : fmt::format("{:.1e}", r.allowed);
}

/// Bytes moved by the hardware in percent of the formula's bytes; below 100 if a cache served some
/// of them.
std::string dram_text(const KernelsScore& score, std::size_t i) {
  const auto& dram = score.dram[i];
  if (!dram) return "-";
  const auto model = static_cast<double>(bytes_of(score.results[i].model).count());
  return fmt::format("{:.0f}", 100 * (dram->read + dram->written) / model);
}

/// A line for each kernel and reason.
std::string skipped_text(const KernelsScore& score) {
  std::string out;
  std::string last;
  for (const KernelResult& r : score.results) {
    if (r.skipped.empty()) continue;
    const std::string line = fmt::format("skipped {}, {}: {}\n", r.name, r.dtype, r.skipped);
    if (line != last) out += line;
    last = line;
  }
  return out;
}

std::string times_text(const KernelsScore& score, std::size_t width) {
  constexpr Bytes kWorthTelling{1 << 20};  // smaller cases measure mainly the launch
  std::vector<Table::Column> columns{
      {"kernel", Align::kLeft},         {"shape", Align::kLeft},
      {"time", Align::kRight, "us"},    {"spread", Align::kRight, "%"},
      {"moved", Align::kRight, "GB/s"}, {"predicted", Align::kRight, "us"},
      {"off", Align::kRight, "%"}};
  bool any = false;
  const bool predicted = !score.predicted_us.empty();
  const bool dram = !score.dram.empty();
  if (dram) columns.push_back({"DRAM", Align::kRight, "%"});
  Table table{columns};
  for (std::size_t i = 0; i < score.results.size(); ++i) {
    const KernelResult& r = score.results[i];
    if (!r.timing || bytes_of(r.model) < kWorthTelling) continue;
    any = true;
    std::vector<std::string> row{
        r.name,
        fmt::format("{} {}", r.dtype, r.shape),
        fmt::format("{:.1f}", r.timing->median_us),
        fmt::format("{:.1f}", 100 * r.timing->spread),
        fmt::format("{:.0f}", gb_s(r)),
        predicted ? fmt::format("{:.1f}", score.predicted_us[i]) : "-",
        predicted ? fmt::format("{:+.1f}", 100 * (score.predicted_us[i] / r.timing->median_us - 1))
                  : "-"};
    if (dram) row.push_back(dram_text(score, i));
    table.add_row(row);
  }
  return any ? fmt::format("\n{}", table.str(width)) : std::string{};
}

/// Measured and predicted rates of each kernel's case with the most bytes.
BarChart rates_chart(const KernelsScore& score) {
  const PartStyle measured{"measured", {"#0072B2"}};
  BarChart chart{.name = "kernel_rates",
                 .title = fmt::format("Memory throughput of each kernel, {}", score.device),
                 .x_label = "bytes of the formula per time, largest case (GB/s)",
                 .column = "gb_s",
                 .compared_label = "predicted",
                 .styles = {measured}};
  std::vector<std::size_t> largest;
  for (std::size_t i = 0; i < score.results.size(); ++i) {
    const KernelResult& r = score.results[i];
    if (!r.timing || r.timing->median_us <= 0) continue;
    if (largest.empty() || score.results[largest.back()].name != r.name) {
      largest.push_back(i);
    } else if (bytes_of(r.model) > bytes_of(score.results[largest.back()].model)) {
      largest.back() = i;
    }
  }
  for (const std::size_t i : largest) {
    const KernelResult& r = score.results[i];
    const double rate = gb_s(r);
    ChartBar bar{.label = r.name,
                 .parts = {{measured, rate}},
                 .end_text = fmt::format("{:.0f}", rate),
                 .inside_numbers = false};
    if (!score.predicted_us.empty()) {
      bar.compared = static_cast<double>(bytes_of(r.model).count()) / score.predicted_us[i] / 1e3;
      bar.compared_text = fmt::format("{:.0f} predicted", *bar.compared);
    }
    chart.bars.push_back(bar);
  }
  return chart;
}

}  // namespace

std::string kernels_text(const KernelsScore& score, bool cases, std::size_t width) {
  const auto failed = std::count_if(score.results.begin(), score.results.end(),
                                    [](const auto& r) { return !r.pass; });
  std::string out =
      fmt::format("{} cases on {}, seed {}: {}\n\n", score.results.size(), score.device, score.seed,
                  failed == 0 ? "all pass" : fmt::format("{} fail", failed));
  std::vector<Table::Column> columns{{"kernel", Align::kLeft}, {"dtype", Align::kLeft}};
  columns.push_back(cases ? Table::Column{"shape", Align::kLeft} : Table::Column{"cases"});
  for (const char* header : {"error", "allowed", "counted", "formula", ""}) {
    columns.push_back({header, Align::kRight, header[0] == 'c' || header[0] == 'f' ? "bytes" : ""});
  }
  Table table{columns};
  for (const Line& line : lines_of(score, cases, true)) {
    table.add_row(
        {line.first->name, line.first->dtype,
         cases ? line.first->shape : fmt::format("{}", line.cases), error_text(*line.worst),
         allowed_text(*line.worst), line.is_counted ? with_commas(line.counted.count()) : "-",
         line.is_counted && line.counted == line.model ? "equal" : with_commas(line.model.count()),
         verdict(line)});
  }
  out += table.str(width) + times_text(score, width);
  for (const KernelResult& r : score.results) {
    if (r.pass) continue;
    out += fmt::format("\nFAIL {}, {}, {}: {}", r.name, r.dtype, r.shape, r.problem);
  }
  if (failed > 0) out += "\n";
  out += skipped_text(score);
  for (const std::string& note : score.notes) out += fmt::format("note: {}\n", note);
  return out;
}

std::vector<Figure> kernels_figures(const KernelsScore& score) {
  constexpr double kKibibyte = 1024;
  const PartStyle error{"largest error", {"#0072B2"}};
  const PartStyle bytes{"counted", {"#0072B2"}};
  BarChart errors{
      .name = "kernel_errors",
      .title = fmt::format("Error of each kernel against its reference, {}", score.device),
      .x_label = "largest error of any case (% of the tolerance of its dtype)",
      .column = "error_percent_of_allowed",
      .limit_label = "allowed",
      .styles = {error}};
  BarChart traffic{
      .name = "kernel_bytes",
      .title = fmt::format("Bytes moved by the cases of each kernel, {}", score.device),
      .x_label = "loaded and stored, all cases together (KiB)",
      .column = "bytes",
      .unit = kKibibyte,
      .styles = {bytes}};
  for (const Line& line : lines_of(score, false, false)) {
    const double share = 100 * std::min(share_of_allowed(*line.worst), 10.0);
    errors.bars.push_back({.label = line.first->name,
                           .parts = {{error, share}},
                           .limit = 100.0,
                           .end_text = line.worst->error == 0 ? "none" : error_text(*line.worst),
                           .inside_numbers = false});
    if (!line.is_counted) continue;
    const auto counted = static_cast<double>(line.counted.count());
    const auto model = static_cast<double>(line.model.count());
    const bool equal = counted == model;
    ChartBar bar{.label = line.first->name,
                 .parts = {{bytes, counted}},
                 .end_text = fmt::format("{:.1f}{}", counted / kKibibyte,
                                         equal ? ", as in its formula" : ""),
                 .inside_numbers = false};
    if (!equal) {  // bars in pairs only if the values differ
      bar.compared = model;
      bar.compared_text = fmt::format("{:.1f} by its formula", model / kKibibyte);
      traffic.compared_label = "formula";
    }
    traffic.bars.push_back(bar);
  }
  std::vector<Figure> figures{draw(errors)};
  if (const auto rates = rates_chart(score); !rates.bars.empty()) figures.push_back(draw(rates));
  if (!traffic.bars.empty()) figures.push_back(draw(traffic));
  return figures;
}

}  // namespace kvsim
