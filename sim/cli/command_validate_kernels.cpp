// kvsim validate kernels: the CUDA kernels against their references and their formulas of traffic.

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "kernels/device_info.hpp"
#include "models/cost/roofline.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/cli/command_validate.hpp"
#include "sim/cli/kernels_report.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/report/atomic_file.hpp"
#include "sim/report/gnuplot.hpp"
#include "sim/report/result_json.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

/// The GPU of the catalogue that a driver's name means; null: none.
const Gpu* catalogue_gpu(std::string name) {
  if (name.starts_with("NVIDIA ")) name.erase(0, 7);
  try {
    return &find_gpu(name);
  } catch (const InputError&) {
    return nullptr;
  }
}

OpFamily family_of(const std::string& word) {
  for (std::size_t i = 0; i < kOpFamilies; ++i) {
    if (const auto family = static_cast<OpFamily>(i); name_of(family) == word) return family;
  }
  KVSIM_CHECK(false, "no family of operators is called {}", word);
  return OpFamily::kElementwise;
}

/// Data-sheet bandwidth and launches, by the profile of the stack that nothing holds back.
void predict_times(KernelsScore& score) {
  const Gpu* gpu = catalogue_gpu(score.device);
  if (gpu == nullptr) {
    score.notes.push_back(fmt::format(
        "no prediction: the catalogue has no GPU called \"{}\" (kvsim list gpus)", score.device));
    return;
  }
  const Roofline roofline{*gpu, find_stack("ideal"), builtin_calibration()};
  for (const kernels::KernelResult& r : score.results) {
    const Op op{.name = "kernel",
                .family = family_of(r.family),
                .bytes_read = static_cast<double>(r.model.loaded.count()),
                .bytes_written = static_cast<double>(r.model.stored.count()),
                .launches = static_cast<std::int32_t>(r.model.launches)};
    score.predicted_us.push_back(1e6 * roofline.time(op).count());
  }
  score.notes.push_back(
      fmt::format("predicted: the model's time on {} for the formula's bytes, stack \"ideal\"",
                  gpu->name));
}

KernelsScore run_on_device(kernels::SuiteOptions options) {
  const DeviceList list = list_devices();
  if (list.devices.empty()) {
    throw InputError{fmt::format(
        "--device cuda: looked for a CUDA driver and a device through the CUDA runtime: {}; build "
        "with nvcc on a machine with an NVIDIA GPU, or take --device sim",
        list.problem)};
  }
  options.timed = true;
  KernelsScore score{.device = list.devices.front().name,
                     .driver = list.driver,
                     .seed = options.seed,
                     .results = kernels::run_suite_on_device(options)};
  predict_times(score);
  return score;
}

KernelsScore run_suite(const Arguments& arguments) {
  const std::string device = arguments.value("device").value_or("sim");
  kernels::SuiteOptions options;
  options.seed = static_cast<std::uint64_t>(
      arguments.integer("seed", 0, std::int64_t{1} << 53).value_or(0));
  if (const auto only = arguments.value("only")) {
    const auto names = kernels::suite_kernels();
    if (std::find(names.begin(), names.end(), *only) == names.end()) {
      throw InputError{"--only", fmt::format("one of {}", fmt::join(names, ", ")),
                       fmt::format("\"{}\"", *only)};
    }
    options.only = *only;
  }
  if (device == "cuda") return run_on_device(options);
  if (device != "sim") {
    throw InputError{"--device", "sim or cuda", fmt::format("\"{}\"", device)};
  }
  return {.device = "cuda-sim",
          .driver = {},
          .seed = options.seed,
          .results = kernels::run_suite_in_simulator(options)};
}

int run_validate_kernels(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no file");
  std::optional<AtomicFolder> folder;
  if (const auto out = arguments.value("out")) folder.emplace(fs::path{*out});
  const KernelsScore score = run_suite(arguments);
  std::string written;
  if (folder) {
    folder->write("result.json", to_file_text(kernels_json(score)));
    fs::create_directories(folder->partial() / "figures");
    const DrawnFigures drawn = draw_figures(kernels_figures(score), folder->partial() / "figures");
    for (const std::string& note : drawn.notes) written += fmt::format("note: {}\n", note);
    folder->commit();
    written += fmt::format("wrote {}: result.json, {} files of figures\n", *arguments.value("out"),
                           drawn.files.size());
  }
  if (arguments.has("json")) {
    write_out(to_file_text(kernels_json(score)));
  } else {
    write_out(kernels_text(score, arguments.has("cases"), terminal_width()) + written);
  }
  return score.pass() ? kDone : kDoesNotFit;
}

}  // namespace

Command validate_kernels_command() {
  return {.name = "validate kernels",
          .summary = "the CUDA kernels against references and formulas of their traffic",
          .usage = "kvsim validate kernels [--device sim|cuda] [options]",
          .examples =
              "kvsim validate kernels\n"
              "  kvsim validate kernels --only decode_attention --cases\n"
              "  kvsim validate kernels --device cuda -o results/kernels",
          .options = {{"device", 0, "WHERE", false,
                       "sim: the simulator, which counts bytes; cuda: a GPU, timed (sim)"},
                      {"seed", 0, "N", false, "of the inputs (0)"},
                      {"only", 0, "KERNEL", false, "one kernel alone"},
                      {"cases", 0, "", false, "a line for each shape"},
                      {"out", 'o', "DIR", false, "folder for result.json and figures"},
                      {"json", 0, "", false, "print JSON (schema kvsim.validate-kernels/1)"}},
          .run = run_validate_kernels};
}

}  // namespace kvsim
