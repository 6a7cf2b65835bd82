// kvsim calibrate --measured: fits coefficients of kernel forms to other projects' timings.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/cli/calibrate/command_calibrate.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/progress.hpp"
#include "sim/report/text/table.hpp"
#include "sim/report/text/text.hpp"
#include "validation/measured/calibrate_kernels.hpp"

namespace kvsim {
namespace {

std::string percent(double fraction) { return fmt::format("{:.1f}", 100 * fraction); }

std::string table_of(const std::vector<KernelCalibrationFile>& files, std::size_t width) {
  using Align = Table::Align;
  Table table{{{"family", Align::kLeft},
               {"GPU", Align::kLeft},
               {"kernels", Align::kLeft},
               {"format", Align::kLeft},
               {"rows"},
               {"fitted", Align::kRight, "MAPE %"},
               {"held out", Align::kRight, "rows"},
               {"held out", Align::kRight, "MAPE %"},
               {"p90", Align::kRight, "%"}}};
  for (const KernelCalibrationFile& file : files) {
    for (const KernelCalibration& e : file.entries) {
      table.add_row({std::string{name_of(e.op)}, e.gpu, e.stack, e.format,
                     fmt::format("{}", e.fitted.n), percent(e.fitted.mape),
                     fmt::format("{}", e.held_out.n),
                     e.held_out.n > 0 ? percent(e.held_out.mape) : "-",
                     e.held_out.n > 0 ? percent(e.held_out.p90_ape) : "-"});
    }
  }
  return table.str(width);
}

std::string too_few_text(const TimingGroup& group) {
  return fmt::format("{} of {} on {}, {}: {} of {} rows", name_of(group.op), group.stack, group.gpu,
                     group.format, group.rows, kMinRows);
}

/// Throws InputError if no group has enough rows.
void refuse_without_fit(const std::vector<MeasuredFile>& files,
                        const std::vector<TimingGroup>& too_few, const std::string& place) {
  if (too_few.size() < timing_groups(files).size()) return;
  const auto largest = std::max_element(
      too_few.begin(), too_few.end(), [](const auto& a, const auto& b) { return a.rows < b.rows; });
  throw InputError{
      place, fmt::format("at least {} rows of one kernel family, GPU, stack and format", kMinRows),
      fmt::format("at most {} ({})", largest->rows, too_few_text(*largest))};
}

}  // namespace

int calibrate_measured(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no word");
  const auto out = arguments.value("out");
  if (!out) throw InputError{"calibrate", "-o DIR for the calibrations", "none"};
  std::vector<MeasuredFile> files = read_all_measured(*arguments.value("measured"));
  const std::vector<std::string> ops = arguments.values("op");
  for (const std::string& op : ops) {
    std::vector<std::string> known;
    for (std::size_t i = 0; i < kKernelOps; ++i) {
      known.emplace_back(name_of(static_cast<KernelOp>(i)));
    }
    if (std::find(known.begin(), known.end(), op) == known.end()) {
      throw InputError{fmt::format("--op: {}", unknown_name("operator family", op, known))};
    }
  }
  std::map<std::string, std::int64_t> left_out;
  for (const MeasuredFile& file : files) {
    for (const auto& [reason, rows] : file.left_out) left_out[reason] += rows;
  }
  std::erase_if(files, [&](const MeasuredFile& file) {
    return file.rows.empty() ||
           (!ops.empty() && std::find(ops.begin(), ops.end(), name_of(file.op)) == ops.end());
  });
  if (files.empty()) {
    std::vector<std::string> reasons;
    for (const auto& [reason, rows] : left_out) {
      reasons.push_back(fmt::format("{} ({} row{})", reason, rows, rows == 1 ? "" : "s"));
    }
    throw InputError{
        *arguments.value("measured"), "kernel timings to fit to",
        reasons.empty() ? "none" : fmt::format("none; left out: {}", fmt::join(reasons, ", "))};
  }
  const std::string date = date_of(arguments);
  const std::vector<TimingGroup> too_few = groups_with_too_few_rows(files);
  refuse_without_fit(files, too_few, *arguments.value("measured"));
  AtomicFiles written{*out};  // a location that cannot be written is reported before the fit
  const bool quiet = arguments.has("quiet");
  Progress progress{"fitting"};
  const std::vector<KernelCalibrationFile> fitted = calibrate_kernels(
      files, arguments.value("provenance").value_or("timings given on the command line"), date,
      [&](std::size_t done, std::size_t all) {
        if (quiet) return;
        progress.expect(static_cast<double>(all), "fits");
        progress.update(static_cast<double>(done) / static_cast<double>(all));
      });
  progress.finish();
  for (const KernelCalibrationFile& file : fitted) {
    written.write(calibration_file_name(file), write_calibration(file));
  }
  written.commit();
  for (const TimingGroup& group : too_few) {
    write_err(fmt::format("kvsim: not fitted: {}\n", clean_text(too_few_text(group))));
  }
  if (arguments.has("json")) {
    nlohmann::ordered_json all = nlohmann::ordered_json::array();
    for (const KernelCalibrationFile& file : fitted) {
      all.push_back(nlohmann::ordered_json::parse(write_calibration(file)));
    }
    write_out(to_file_text({{"schema", "kvsim.calibrate/1"}, {"files", std::move(all)}}));
  } else if (!quiet) {
    write_out(fmt::format("{}wrote {} files to {}\n", table_of(fitted, terminal_width()),
                          fitted.size(), *out));
  }
  return kDone;
}

}  // namespace kvsim
