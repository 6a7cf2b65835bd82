#pragma once

#include <cstdint>
#include <string>

namespace kvsim {

/// Clocks and power of a GPU at one moment, from its management library: times without them cannot
/// be compared.
struct DeviceState {
  std::int32_t sm_mhz = 0, memory_mhz = 0;          // now
  std::int32_t max_sm_mhz = 0, max_memory_mhz = 0;  // the highest it may run at
  std::int32_t performance_state = -1;              // 0 is the fastest; -1: unknown
  double power_w = 0, power_limit_w = 0;
  std::int32_t celsius = 0;
  std::uint64_t throttle_reasons = 0;  // NVML's bits; 0: nothing holds the clocks back
  std::string problem{};               // why none of it is known; empty: it is
};

/// Queries NVML, opened at run time (libnvidia-ml.so.1): no build depends on it. `pci_bus_id` is
/// the driver's, "0000:17:00.0". Never throws: the absence of an answer is a result.
[[nodiscard]] DeviceState read_device_state(const std::string& pci_bus_id);

}  // namespace kvsim
