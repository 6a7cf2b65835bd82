#pragma once

#include "kernels/device_info.hpp"
#include "sim/cli/kernels_report.hpp"

namespace kvsim {

/// The suite of kernels on the first CUDA device, timed, the cost model's predictions beside.
/// Errors: InputError, naming what was looked for and what to do, where there is no device.
[[nodiscard]] KernelsScore time_kernels(kernels::SuiteOptions options);

}  // namespace kvsim
