#include "sim/cli/kernels_report.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/table.hpp"

namespace kvsim {
namespace {

using kernels::KernelResult;
using Align = Table::Align;

/// Of the error allowed; 0 where none is and there is none.
double share_of_allowed(const KernelResult& r) {
  if (r.allowed > 0) return r.error / r.allowed;
  return r.error > 0 ? 1.0 / 0.0 : 0.0;
}

/// Cases alike, one line of the table.
struct Line {
  const KernelResult* first = nullptr;
  const KernelResult* worst = nullptr;  // by share of the error allowed
  std::size_t cases = 0, failed = 0;
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
    line.model += bytes_of(r.model);
    if (r.counted) line.counted += bytes_of(*r.counted);
    line.is_counted = line.is_counted && r.counted.has_value();
  }
  return lines;
}

std::string error_text(const KernelResult& r) {
  return r.error == 0 ? "0" : fmt::format("{:.1e}", r.error);
}
std::string allowed_text(const KernelResult& r) {
  return r.allowed == 0 ? "0" : fmt::format("{:.1e}", r.allowed);
}

std::string times_text(const KernelsScore& score, std::size_t width) {
  constexpr Bytes kWorthTelling{1 << 20};  // what is smaller times the launch
  Table table{{{"kernel", Align::kLeft},
               {"shape", Align::kLeft},
               {"time", Align::kRight, "us"},
               {"spread", Align::kRight, "%"},
               {"moved", Align::kRight, "GB/s"},
               {"predicted", Align::kRight, "us"},
               {"off", Align::kRight, "%"}}};
  bool any = false;
  const bool predicted = !score.predicted_us.empty();
  for (std::size_t i = 0; i < score.results.size(); ++i) {
    const KernelResult& r = score.results[i];
    if (!r.timing || bytes_of(r.model) < kWorthTelling) continue;
    any = true;
    table.add_row(
        {r.name, fmt::format("{} {}", r.dtype, r.shape), fmt::format("{:.1f}", r.timing->median_us),
         fmt::format("{:.1f}", 100 * r.timing->spread), fmt::format("{:.0f}", gb_s(r)),
         predicted ? fmt::format("{:.1f}", score.predicted_us[i]) : "-",
         predicted ? fmt::format("{:+.1f}", 100 * (score.predicted_us[i] / r.timing->median_us - 1))
                   : "-"});
  }
  return any ? fmt::format("\n{}", table.str(width)) : std::string{};
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
         line.failed == 0 ? "ok" : "FAIL"});
  }
  out += table.str(width) + times_text(score, width);
  for (const KernelResult& r : score.results) {
    if (r.pass) continue;
    out += fmt::format("\nFAIL {}, {}, {}: {}", r.name, r.dtype, r.shape, r.problem);
  }
  if (failed > 0) out += "\n";
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
      .x_label = "largest error of any case, % of what its dtype allows",
      .column = "error_percent_of_allowed",
      .limit_label = "allowed",
      .styles = {error}};
  BarChart traffic{.name = "kernel_bytes",
                   .title = fmt::format("Bytes of each kernel's cases, {}", score.device),
                   .x_label = "loaded and stored, KiB, all cases together",
                   .column = "bytes",
                   .unit = kKibibyte,
                   .beside_label = "formula",
                   .styles = {bytes}};
  for (const Line& line : lines_of(score, false, false)) {
    const double share = 100 * std::min(share_of_allowed(*line.worst), 10.0);
    errors.bars.push_back({.label = line.first->name,
                           .parts = {{error, share}},
                           .limit = 100.0,
                           .end_text = error_text(*line.worst),
                           .inside_numbers = false});
    if (!line.is_counted) continue;
    const auto counted = static_cast<double>(line.counted.count());
    const auto model = static_cast<double>(line.model.count());
    traffic.bars.push_back({.label = line.first->name,
                            .parts = {{bytes, counted}},
                            .end_text = fmt::format("{:.1f}", counted / kKibibyte),
                            .inside_numbers = false,
                            .beside = model,
                            .beside_text = counted == model ? "equal" : "differs"});
  }
  std::vector<Figure> figures{draw(errors)};
  if (!traffic.bars.empty()) figures.push_back(draw(traffic));
  return figures;
}

}  // namespace kvsim
