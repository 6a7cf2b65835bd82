// The suite of kernels on a GPU. Without a device it prints what was searched, and ctest reports it
// as skipped. It is also built without a device, to check that every kernel compiles and links for
// the architectures of the build.

#include <cstdio>

#include "kernels/device/device_info.hpp"
#include "kernels/suite/bench/result.hpp"

int main() {
  const kvsim::DeviceList list = kvsim::list_devices();
  if (list.devices.empty()) {
    std::printf("KVSIM-SKIPPED: no GPU: %s\n", list.problem.c_str());
    return 0;
  }
  int failures = 0;
  for (const auto& r : kvsim::kernels::run_suite_on_device({})) {
    std::printf("%-4s %-20s %-8s %-50s error %.2e of %.2e %s\n", r.pass ? "ok" : "BAD",
                r.name.c_str(), r.dtype.c_str(), r.shape.c_str(), r.error, r.allowed,
                r.problem.c_str());
    if (!r.pass) ++failures;
  }
  std::printf("%d failures\n", failures);
  return failures == 0 ? 0 : 1;
}
