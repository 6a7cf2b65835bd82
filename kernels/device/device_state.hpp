#pragma once

#include <cstdint>
#include <string>

namespace kvsim {

/// Clocks and power of a GPU at one moment, from its management library. Times without them cannot
/// be compared.
struct DeviceState {
  std::int32_t sm_mhz = 0, memory_mhz = 0;          // now
  std::int32_t max_sm_mhz = 0, max_memory_mhz = 0;  // highest allowed clocks
  std::int32_t performance_state = -1;              // 0 is the fastest; -1: unknown
  double power_w = 0, power_limit_w = 0;
  std::int32_t celsius = 0;
  std::uint64_t throttle_reasons = 0;  // NVML's bits; 0: not throttled
  std::string problem{};               // why the state is unknown; empty: it is known
};

/// Queries NVML, opened at run time (libnvidia-ml.so.1): no build depends on it. `pci_bus_id` is
/// the driver's identifier, "0000:17:00.0". Never throws: a failure is reported in `problem`.
[[nodiscard]] DeviceState read_device_state(const std::string& pci_bus_id);

}  // namespace kvsim
