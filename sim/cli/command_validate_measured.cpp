// kvsim validate measured: the kernels' cost model against timings of others.

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/cli/command_validate.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/report/result_json.hpp"
#include "sim/report/table.hpp"
#include "validation/kernel_accuracy.hpp"

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
               {"median", Align::kRight, "%"},
               {"p90", Align::kRight, "%"},
               {"worst", Align::kRight, "%"},
               {"bias", Align::kRight, "%"},
               {">=30 µs", Align::kRight, "MAPE %"},
               {"held out", Align::kRight, "MAPE %"},
               {"in 90 %", Align::kRight, "%"}}};
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

Unseen unseen_of(const Arguments& arguments) {
  const auto word = arguments.value("unseen");
  if (!word) return Unseen::kNothing;
  if (*word == "pair") return Unseen::kPair;
  if (*word == "gpu") return Unseen::kGpu;
  throw InputError{"--unseen", "pair or gpu", fmt::format("\"{}\"", *word)};
}

int run_validate_measured(const Arguments& arguments) {
  arguments.expect_words(1, 1, "a CSV file, or a folder of them");
  const Unseen unseen = unseen_of(arguments);
  std::vector<MeasuredFile> files = read_all_measured(arguments.words().front());
  std::optional<KernelLibrary> own;
  if (const auto folder = arguments.value("calibration")) own.emplace(read_calibrations(*folder));
  if (arguments.has("held-out")) {
    for (MeasuredFile& file : files) {
      std::erase_if(file.rows, [](const MeasuredRow& row) { return !is_held_out(row); });
    }
  }
  const KernelLibrary& library = own ? *own : KernelLibrary::builtin();
  const std::vector<PredictedRow> rows = predict(files, library, unseen);
  const std::vector<AccuracyGroup> groups = group_rows(rows);
  if (!arguments.has("json")) {
    std::string text = rows.empty() ? std::string{} : table_of(groups, terminal_width());
    for (const MeasuredFile& file : files) {
      if (!file.skipped.empty()) text += fmt::format("skipped {}: {}\n", file.path, file.skipped);
      for (const auto& [reason, n] : file.left_out) {
        text += fmt::format("{}: {} rows left out: {}\n", file.path, n, reason);
      }
    }
    write_out(text);
    return kDone;
  }
  ordered_json out{{"schema", "kvsim.validate-measured/1"},
                   {"unseen", arguments.value("unseen").value_or("nothing")},
                   {"files", ordered_json::array()},
                   {"skipped", ordered_json::array()},
                   {"groups", ordered_json::array()},
                   {"pooled", ordered_json::array()}};
  for (const MeasuredFile& file : files) {
    if (!file.skipped.empty()) {
      out["skipped"].push_back({{"file", file.path}, {"reason", file.skipped}});
    } else {
      out["files"].push_back({{"file", file.path},
                              {"op", name_of(file.op)},
                              {"rows", file.rows.size()},
                              {"left_out", file.left_out}});
    }
  }
  for (const AccuracyGroup& g : groups) {
    out[g.gpu.empty() ? "pooled" : "groups"].push_back(group_json(g));
  }
  if (arguments.has("rows")) {
    out["rows"] = ordered_json::array();
    auto row = rows.begin();
    for (const MeasuredFile& file : files) {
      for (std::size_t i = 0; i < file.rows.size(); ++i) {
        out["rows"].push_back(row_json(*row++, file.path));
      }
    }
  }
  write_out(to_file_text(out));
  return kDone;
}

}  // namespace

Command validate_measured_command() {
  return {.name = "validate measured",
          .summary = "the kernels' cost model against measured timings",
          .usage = "kvsim validate measured FILE.csv|DIR [options]",
          .examples =
              "kvsim validate measured timings/\n"
              "  kvsim validate measured timings/ --unseen gpu --json",
          .options = {{"calibration", 0, "PATH", false,
                       "calibration files to use (those shipped with the program)"},
                      {"unseen", 0, "WHAT", false,
                       "hide the calibrations of each row's (GPU, stack) pair, or of its gpu"},
                      {"held-out", 0, "", false, "only rows whose shapes no fit has seen"},
                      {"rows", 0, "", false, "with --json: every row with its prediction"},
                      {"json", 0, "", false, "print JSON (schema kvsim.validate-measured/1)"}},
          .run = run_validate_measured};
}

}  // namespace kvsim
