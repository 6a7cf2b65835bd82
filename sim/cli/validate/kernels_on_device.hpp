#pragma once

#include <chrono>

#include "kernels/device/device_info.hpp"
#include "sim/cli/validate/device_report.hpp"
#include "sim/cli/validate/kernels_report.hpp"

namespace kvsim {

/// The results of the kernel suite on a GPU, and the GPU.
struct DeviceKernels {
  KernelsScore score;
  DeviceInfo device;
  DeviceStates states;
};

/// Runs the kernel suite on the first CUDA device in a separate process. Returns times with the
/// cost model's predictions and, with `counters`, a profiler's DRAM bytes or a note on why they are
/// missing. Errors: InputError if there is no device, with what was searched and how to fix it.
[[nodiscard]] DeviceKernels time_kernels(kernels::SuiteOptions options, bool counters,
                                         std::chrono::seconds limit = std::chrono::hours{24});

/// Launches each large case once in this process, under a profiler. Errors: as above.
[[nodiscard]] KernelsScore profile_kernels(kernels::SuiteOptions options);

}  // namespace kvsim
