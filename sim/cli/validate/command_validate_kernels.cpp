// kvsim validate kernels: compares the CUDA kernels with their references and traffic formulas.

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/suite/measure.hpp"
#include "models/units/error.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/command_validate.hpp"
#include "sim/cli/validate/kernels_on_device.hpp"
#include "sim/report/chart/gnuplot.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// The results and, on a GPU, the calibration file for scenarios.
struct Found {
  KernelsScore score;
  std::optional<nlohmann::ordered_json> calibration{};
};

Found on_device(const Arguments& arguments, const kernels::SuiteOptions& options) {
  if (arguments.has("profiled")) return {.score = profile_kernels(options)};
  const std::chrono::seconds limit{arguments.integer("limit", 1, 86'400).value_or(86'400)};
  DeviceKernels timed = time_kernels(options, arguments.has("counters"), limit);
  Found found{.score = std::move(timed.score)};
  // Times of wrong results or of a single kernel are not usable for calibration.
  if (arguments.value("out") && options.only.empty() && found.score.pass()) {
    found.calibration =
        device_json(found.score, timed.device, timed.states, kernels::measure_device(), utc_date());
  }
  return found;
}

Found run_suite(const Arguments& arguments) {
  const std::string device = arguments.value("device").value_or("sim");
  kernels::SuiteOptions options;
  options.seed =
      static_cast<std::uint64_t>(arguments.integer("seed", 0, std::int64_t{1} << 53).value_or(0));
  if (const auto only = arguments.value("only")) {
    const auto names = kernels::suite_kernels();
    if (std::find(names.begin(), names.end(), *only) == names.end()) {
      throw InputError{"--only", fmt::format("one of {}", fmt::join(names, ", ")),
                       fmt::format("\"{}\"", *only)};
    }
    options.only = *only;
  }
  if (device == "cuda") return on_device(arguments, options);
  if (device != "sim") {
    throw InputError{"--device", "sim or cuda", fmt::format("\"{}\"", device)};
  }
  for (const char* of_gpu : {"counters", "limit", "profiled"}) {
    if (!arguments.has(of_gpu)) continue;
    throw InputError{fmt::format("--{}: expected --device cuda", of_gpu)};
  }
  return {.score = {.device = "cuda-sim",
                    .driver = {},
                    .seed = options.seed,
                    .results = kernels::run_suite_in_simulator(options)}};
}

}  // namespace

int run_validate_kernels(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no file");
  std::optional<AtomicFolder> folder;
  if (const auto out = arguments.value("out")) folder.emplace(fs::path{*out});
  const Found found = run_suite(arguments);
  const KernelsScore& score = found.score;
  std::string written;
  if (folder) {
    folder->write("result.json", to_file_text(kernels_json(score)));
    if (found.calibration) folder->write("calibration.json", to_file_text(*found.calibration));
    const DrawnFigures drawn = draw_figures(kernels_figures(score), folder->make_folder("figures"));
    for (const std::string& note : drawn.notes) written += fmt::format("note: {}\n", note);
    folder->commit();
    written +=
        fmt::format("wrote {}: result.json, {}{} files of figures\n", *arguments.value("out"),
                    found.calibration ? "calibration.json, " : "", drawn.files.size());
  }
  if (arguments.has("json")) {
    write_out(to_file_text(kernels_json(score)));
  } else {
    write_out(kernels_text(score, arguments.has("cases"), terminal_width()) + written);
  }
  return score.pass() ? kDone : kDoesNotFit;
}

}  // namespace kvsim
