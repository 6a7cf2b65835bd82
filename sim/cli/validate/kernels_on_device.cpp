#include "sim/cli/validate/kernels_on_device.hpp"

#include <algorithm>
#include <filesystem>

#include <fmt/format.h>

#include "kernels/device/device_state.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "validation/device/counters.hpp"
#include "validation/device/kernels_apart.hpp"

namespace kvsim {
namespace {

/// The catalogue GPU with this driver name; null if there is none.
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

/// Predicts times from data-sheet bandwidth and launches, with the stack "ideal".
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
  score.notes.push_back(fmt::format(
      "predicted: the model's time on {} for the formula's bytes, stack \"ideal\"", gpu->name));
}

std::string state_note(const DeviceState& s) {
  if (!s.problem.empty()) return fmt::format("clocks and power unknown: {}", s.problem);
  return fmt::format(
      "after the last kernel: SM clock {} of {} MHz, memory {} of {} MHz, P{}, {:.0f} of {:.0f} W, "
      "{} degrees C, throttle reasons {:#x}",
      s.sm_mhz, s.max_sm_mhz, s.memory_mhz, s.max_memory_mhz, s.performance_state, s.power_w,
      s.power_limit_w, s.celsius, s.throttle_reasons);
}

/// The first device of `list`.
const DeviceInfo& first_device(const DeviceList& list) {
  if (!list.devices.empty()) return list.devices.front();
  throw InputError{fmt::format(
      "--device cuda: looked for a CUDA driver and a device through the CUDA runtime: {}; build "
      "with nvcc on a machine with an NVIDIA GPU (kvsim validate kernels --device sim needs none)",
      list.problem)};
}

/// The command line of this program that launches each large case once.
std::vector<std::string> profiled_program(const kernels::SuiteOptions& options) {
  std::vector<std::string> words{std::filesystem::read_symlink("/proc/self/exe").string(),
                                 "validate",
                                 "kernels",
                                 "--device",
                                 "cuda",
                                 "--profiled",
                                 "--json",
                                 "--seed",
                                 fmt::format("{}", options.seed)};
  if (!options.only.empty()) words.insert(words.end(), {"--only", options.only});
  return words;
}

void count_dram(KernelsScore& score, const kernels::SuiteOptions& options) {
  const ProfilerRun run = run_profiler(profiled_program(options), std::chrono::seconds{90});
  std::string problem = run.problem;
  if (problem.empty()) {
    try {
      add_counters(score, run.output, run.csv);
    } catch (const std::exception& error) {  // InputError of the table, or invalid JSON
      score.dram.clear();
      problem = error.what();
    }
  }
  if (!problem.empty()) score.notes.push_back(fmt::format("no DRAM counters: {}", problem));
}

}  // namespace

DeviceKernels time_kernels(kernels::SuiteOptions options, bool counters,
                           std::chrono::seconds limit) {
  // All CUDA work runs in child processes, so that a faulty kernel does not affect the others.
  const DeviceList list = list_devices_apart(list_devices);
  DeviceKernels out{.score = {}, .device = first_device(list), .states = {}};
  options.timed = true;
  out.score.device = out.device.name;
  out.score.driver = list.driver;
  out.score.seed = options.seed;
  out.states.before = read_device_state(out.device.pci_bus_id);
  const auto run = [&](const std::string& kernel) {
    kernels::SuiteOptions one = options;
    one.only = kernel;
    return kernels::run_suite_on_device(one);
  };
  const std::vector<std::string> names =
      options.only.empty() ? kernels::suite_kernels() : std::vector{options.only};
  out.score.results =
      run_kernels_apart(names, {.run = run, .fault = kernels::device_fault, .limit = limit});
  out.states.after = read_device_state(out.device.pci_bus_id);
  const auto alone = std::count_if(out.score.results.begin(), out.score.results.end(),
                                   [](const auto& r) { return !r.compared; });
  if (alone > 0) {
    out.score.notes.push_back(fmt::format(
        "{} large cases were only timed: small shapes of their kernels are compared completely",
        alone));
  }
  predict_times(out.score);
  out.score.notes.push_back(state_note(out.states.after));
  if (counters) count_dram(out.score, options);
  return out;
}

KernelsScore profile_kernels(kernels::SuiteOptions options) {
  const DeviceList list = list_devices();
  KernelsScore score{
      .device = first_device(list).name, .driver = list.driver, .seed = options.seed};
  options.timed = true;  // only sizes that are timed
  options.profiled = true;
  score.results = kernels::run_suite_on_device(options);
  return score;
}

}  // namespace kvsim
