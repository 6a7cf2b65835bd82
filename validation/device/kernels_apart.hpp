#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "kernels/device/device_info.hpp"
#include "kernels/suite/bench/result.hpp"

namespace kvsim {

/// How the kernels of the suite are run where one of them may break the device for its process.
struct KernelRuns {
  /// Every case of one kernel.
  std::function<std::vector<kernels::KernelResult>(const std::string& kernel)> run;
  /// Why nothing more can be run in that process; empty: it can.
  std::function<std::string()> fault;
  std::chrono::milliseconds patience{120'000};               // of one kernel
  std::chrono::milliseconds limit = std::chrono::hours{24};  // of all; the rest is skipped
};

/// All of `names` in order, in a child process: where a kernel ends it, hangs or breaks the device,
/// what was found before is kept, the kernel has a result that says what happened, and another
/// child goes on with the next.
[[nodiscard]] std::vector<kernels::KernelResult> run_kernels_apart(
    const std::vector<std::string>& names, const KernelRuns& runs);

/// `list` in a child process, so that this one has not used CUDA.
[[nodiscard]] DeviceList list_devices_apart(const std::function<DeviceList()>& list);

}  // namespace kvsim
