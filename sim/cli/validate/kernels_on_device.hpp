#pragma once

#include <chrono>

#include "kernels/device/device_info.hpp"
#include "sim/cli/validate/device_report.hpp"
#include "sim/cli/validate/kernels_report.hpp"

namespace kvsim {

/// The suite of kernels on a GPU, and the GPU.
struct DeviceKernels {
  KernelsScore score;
  DeviceInfo device;
  DeviceStates states;
};

/// Runs the suite of kernels on the first CUDA device in a separate process: times with the cost
/// model's predictions and, with `counters`, the DRAM bytes of a profiler, or a note why not.
/// Errors: InputError if there is no device, with what was looked for and what to do.
[[nodiscard]] DeviceKernels time_kernels(kernels::SuiteOptions options, bool counters,
                                         std::chrono::seconds limit = std::chrono::hours{24});

/// Large cases launched once each, in this process, for a profiler to watch. Errors: as above.
[[nodiscard]] KernelsScore profile_kernels(kernels::SuiteOptions options);

}  // namespace kvsim
