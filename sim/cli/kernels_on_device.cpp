#include "sim/cli/kernels_on_device.hpp"

#include <fmt/format.h>

#include "kernels/device_state.hpp"
#include "models/cost/roofline.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

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
  score.notes.push_back(fmt::format(
      "predicted: the model's time on {} for the formula's bytes, stack \"ideal\"", gpu->name));
}

std::string state_note(const DeviceState& s) {
  if (!s.problem.empty()) return fmt::format("clocks and power unknown: {}", s.problem);
  return fmt::format(
      "after the last kernel: SM clock {} of {} MHz, memory {} of {} MHz, P{}, {:.0f} of {:.0f} W, "
      "{} degrees C, throttle reasons {:#x}",
      s.sm_mhz, s.most_sm_mhz, s.memory_mhz, s.most_memory_mhz, s.performance_state, s.power_w,
      s.power_limit_w, s.celsius, s.throttle_reasons);
}

}  // namespace

KernelsScore time_kernels(kernels::SuiteOptions options) {
  const DeviceList list = list_devices();
  if (list.devices.empty()) {
    throw InputError{fmt::format(
        "--device cuda: looked for a CUDA driver and a device through the CUDA runtime: {}; build "
        "with nvcc on a machine with an NVIDIA GPU (kvsim validate kernels --device sim needs "
        "none)",
        list.problem)};
  }
  options.timed = true;
  KernelsScore score{.device = list.devices.front().name,
                     .driver = list.driver,
                     .seed = options.seed,
                     .results = kernels::run_suite_on_device(options)};
  predict_times(score);
  score.notes.push_back(state_note(read_device_state(list.devices.front().pci_bus_id)));
  return score;
}

}  // namespace kvsim
