// The output of `kvsim validate measured`: text, files and figures.

#include "sim/cli/validate/measured_report.hpp"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "sim/report/text/table.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json group_json(const AccuracyGroup& g) {
  ordered_json out{{"op", g.op}};
  if (!g.gpu.empty()) {
    out["gpu"] = g.gpu;
    out["stack"] = g.stack;
    out["dtype"] = g.dtype;
  }
  out.update({{"n", g.all.n},
              {"mape", g.all.mape},
              {"median_ape", g.all.median_ape},
              {"p90_ape", g.all.p90_ape},
              {"worst_ape", g.all.worst_ape},
              {"bias", g.all.bias},
              {"n_large", g.large.n},
              {"mape_large", g.large.n > 0 ? ordered_json(g.large.mape) : ordered_json()},
              {"n_held_out", g.held_out.n},
              {"mape_held_out", g.held_out.n > 0 ? ordered_json(g.held_out.mape) : ordered_json()},
              {"coverage", g.covered},
              {"n_extrapolated", g.extrapolated},
              {"basis", g.bases}});
  return out;
}

ordered_json row_json(const PredictedRow& p, const std::string& file) {
  ordered_json call = ordered_json::object();
  const auto names = dimension_names(op_of(p.row->call));
  const auto values = dimensions_of(p.row->call);
  for (std::size_t i = 0; i < kDimensions; ++i) {
    if (!names[i].empty()) call[std::string{names[i]}] = values[i];
  }
  return {{"file", file},
          {"line", p.row->line},
          {"op", name_of(op_of(p.row->call))},
          {"gpu", p.row->gpu_label},
          {"stack", p.row->stack},
          {"dtype", p.row->format.name},
          {"call", std::move(call)},
          {"measured_us", p.row->us},
          {"predicted_us", p.estimate.us},
          {"low_us", p.estimate.low},
          {"high_us", p.estimate.high},
          {"ideal_us", p.ideal_us},
          {"error", p.error()},
          {"basis", name_of(p.basis)},
          {"held_out", p.held_out},
          {"extrapolated", p.estimate.extrapolated}};
}

std::string percent(const ErrorSummary& s, double ErrorSummary::*part) {
  return s.n > 0 ? fmt::format("{:.1f}", 100 * (s.*part)) : "-";
}

std::string table_of(const std::vector<AccuracyGroup>& groups, std::size_t width) {
  using Align = Table::Align;
  Table table{{{"family", Align::kLeft},
               {"GPU", Align::kLeft},
               {"kernels", Align::kLeft},
               {"format", Align::kLeft},
               {"rows"},
               {"MAPE", Align::kRight, "%"},
               {"median", Align::kRight, "%", true},
               {"p90", Align::kRight, "%", true},
               {"worst", Align::kRight, "%", true},
               {"bias", Align::kRight, "%", true},
               {">=30 µs", Align::kRight, "MAPE %", true},
               {"held out", Align::kRight, "MAPE %"},
               {"in 90 %", Align::kRight, "%", true}}};
  bool pooled = false;
  for (const AccuracyGroup& g : groups) {
    if (g.gpu.empty() && !pooled) {
      table.add_section("all rows of a family");
      pooled = true;
    }
    table.add_row({g.op, g.gpu, g.stack, g.dtype, fmt::format("{}", g.all.n),
                   percent(g.all, &ErrorSummary::mape), percent(g.all, &ErrorSummary::median_ape),
                   percent(g.all, &ErrorSummary::p90_ape), percent(g.all, &ErrorSummary::worst_ape),
                   percent(g.all, &ErrorSummary::bias), percent(g.large, &ErrorSummary::mape),
                   percent(g.held_out, &ErrorSummary::mape),
                   fmt::format("{:.0f}", 100 * g.covered)});
  }
  return table.str(width);
}

/// The calibrations that a group's rows are predicted from.
std::string basis_text(const AccuracyGroup& g) {
  std::string text;
  for (const auto& [basis, n] : g.bases) {
    if (!text.empty()) text += ", ";
    text += g.bases.size() > 1 ? fmt::format("{} {}", n, basis) : basis;
  }
  return text;
}

std::string markdown_row(const AccuracyGroup& g, bool pooled) {
  const std::string names =
      pooled ? g.op : fmt::format("{} | {} | {} | {}", g.op, g.gpu, g.stack, g.dtype);
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {:.0f} | {} |\n", names, g.all.n,
                     percent(g.all, &ErrorSummary::mape), percent(g.all, &ErrorSummary::median_ape),
                     percent(g.all, &ErrorSummary::p90_ape),
                     percent(g.all, &ErrorSummary::worst_ape), percent(g.all, &ErrorSummary::bias),
                     percent(g.large, &ErrorSummary::mape), 100 * g.covered, basis_text(g));
}

/// Errors by family, generation of the GPU and format, for the goal of "an unseen GPU of a known
/// generation". If no calibration of the generation is left, another generation or the data sheet
/// is used.
std::string generations_markdown(const std::vector<PredictedRow>& rows) {
  struct Pool {
    std::vector<double> errors;
    std::int64_t strange = 0;  // without a calibration of the generation
  };
  std::map<std::array<std::string, 3>, Pool> pools;
  for (const PredictedRow& p : rows) {
    Pool& pool = pools[{std::string{name_of(op_of(p.row->call))}, p.row->gpu->generation,
                        p.row->format.name}];
    pool.errors.push_back(p.error());
    const bool strange =
        p.basis == KernelBasis::kNominal || p.basis == KernelBasis::kOtherGeneration;
    pool.strange += strange ? 1 : 0;
  }
  std::string out =
      "| family | generation | format | rows | MAPE % | median | p90 | bias | without the "
      "generation |\n|---|---|---|---:|---:|---:|---:|---:|---:|\n";
  for (auto& [names, pool] : pools) {
    const ErrorSummary all = summarise(std::move(pool.errors));
    out += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {:.0f} % |\n", names[0], names[1],
                       names[2], all.n, percent(all, &ErrorSummary::mape),
                       percent(all, &ErrorSummary::median_ape),
                       percent(all, &ErrorSummary::p90_ape), percent(all, &ErrorSummary::bias),
                       100.0 * static_cast<double>(pool.strange) / static_cast<double>(all.n));
  }
  return out;
}

}  // namespace

ordered_json measured_json(const MeasuredScore& score, bool with_rows) {
  ordered_json out{{"schema", "kvsim.validate-measured/1"}, {"unseen", score.unseen},
                   {"files", ordered_json::array()},        {"skipped", ordered_json::array()},
                   {"groups", ordered_json::array()},       {"pooled", ordered_json::array()}};
  for (const MeasuredFile& file : score.files) {
    if (!file.skipped.empty()) {
      out["skipped"].push_back({{"file", file.path}, {"reason", file.skipped}});
    } else {
      out["files"].push_back({{"file", file.path},
                              {"op", name_of(file.op)},
                              {"rows", file.rows.size()},
                              {"left_out", file.left_out}});
    }
  }
  for (const AccuracyGroup& g : score.groups) {
    out[g.gpu.empty() ? "pooled" : "groups"].push_back(group_json(g));
  }
  if (with_rows) {
    out["rows"] = ordered_json::array();
    auto row = score.rows.begin();
    for (const MeasuredFile& file : score.files) {
      for (std::size_t i = 0; i < file.rows.size(); ++i) {
        out["rows"].push_back(row_json(*row++, file.path));
      }
    }
  }
  return out;
}

std::string measured_csv(const MeasuredScore& score) {
  std::string out =
      "op,gpu,stack,dtype,line,measured_us,predicted_us,low_us,high_us,ideal_us,basis,held_out,"
      "extrapolated\n";
  for (const PredictedRow& p : score.rows) {
    out += fmt::format("{},{},{},{},{},{},{},{},{},{},{},{},{}\n", name_of(op_of(p.row->call)),
                       p.row->gpu_label, p.row->stack, p.row->format.name, p.row->line, p.row->us,
                       p.estimate.us, p.estimate.low, p.estimate.high, p.ideal_us, name_of(p.basis),
                       p.held_out, p.estimate.extrapolated);
  }
  return out;
}

std::string measured_text(const MeasuredScore& score, std::size_t width) {
  std::string text = score.rows.empty() ? std::string{} : table_of(score.groups, width);
  for (const MeasuredFile& file : score.files) {
    if (!file.skipped.empty()) text += fmt::format("skipped {}: {}\n", file.path, file.skipped);
    for (const auto& [reason, n] : file.left_out) {
      text += fmt::format("{}: {} rows left out: {}\n", file.path, n, reason);
    }
  }
  return text;
}

std::string measured_markdown(const MeasuredScore& score, const std::string& title) {
  const std::string columns =
      "rows | MAPE % | median | p90 | worst | bias | MAPE of calls of 30 µs and more | in the 90 % "
      "interval | basis |\n";
  std::string out = fmt::format("### {}\n\n| family | {}|---|{}\n", title, columns,
                                "---:|---:|---:|---:|---:|---:|---:|---:|---|");
  for (const AccuracyGroup& g : score.groups) {
    if (g.gpu.empty()) out += markdown_row(g, true);
  }
  out += "\n" + generations_markdown(score.rows);
  out += fmt::format("\n| family | GPU | kernels | format | {}|---|---|---|---|{}\n", columns,
                     "---:|---:|---:|---:|---:|---:|---:|---:|---|");
  for (const AccuracyGroup& g : score.groups) {
    if (!g.gpu.empty()) out += markdown_row(g, false);
  }
  return out + "\n";
}

std::vector<Figure> measured_figures(const MeasuredScore& score) {
  constexpr std::size_t kMaxMarks = 1500;  // per GPU; more marks add no information
  std::map<KernelOp, std::map<std::string, std::vector<ChartPoint>>> families;
  for (const PredictedRow& p : score.rows) {
    families[op_of(p.row->call)][p.row->gpu->name].push_back({p.row->us, p.estimate.us});
  }
  std::vector<Figure> out;
  for (auto& [op, gpus] : families) {
    ParityChart chart;
    chart.name = std::string{name_of(op)};
    chart.title = fmt::format("{}: predicted against measured", name_of(op));
    chart.x_label = "measured (µs)";
    chart.y_label = "predicted (µs)";
    chart.x_column = "measured_us";
    chart.y_column = "predicted_us";
    chart.band = 0.15;
    chart.band_label = "within 15 %";
    for (auto& [gpu, points] : gpus) {
      std::vector<ChartPoint> some;
      const std::size_t every = (points.size() + kMaxMarks - 1) / kMaxMarks;
      for (std::size_t i = 0; i < points.size(); i += every) some.push_back(points[i]);
      chart.groups.push_back({.label = gpu, .points = std::move(some), .reference = true});
    }
    out.push_back(draw(chart));
  }
  return out;
}

}  // namespace kvsim
