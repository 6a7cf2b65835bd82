#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/device_info.hpp"
#include "kernels/suite/bench/result.hpp"

namespace kvsim {

/// Functions and limits for running the suite's kernels when a kernel may break the device for its
/// process.
struct KernelRuns {
  /// Runs every case of one kernel.
  std::function<std::vector<kernels::KernelResult>(const std::string& kernel)> run;
  /// Why no further kernel can run in that process; empty if one can.
  std::function<std::string()> fault;
  std::chrono::milliseconds patience{120'000};               // of one kernel
  std::chrono::milliseconds limit = std::chrono::hours{24};  // for all kernels; the rest is skipped
};

/// Runs all of `names` in order in a child process. If a kernel ends the process, hangs or breaks
/// the device, earlier results are kept, the kernel's result states the failure, and another child
/// continues with the next kernel.
[[nodiscard]] std::vector<kernels::KernelResult> run_kernels_apart(
    const std::vector<std::string>& names, const KernelRuns& runs);

/// Runs `list` in a child process, so that this process does not use CUDA.
[[nodiscard]] DeviceList list_devices_apart(const std::function<DeviceList()>& list);

}  // namespace kvsim
