#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/units/units.hpp"

namespace kvsim {

/// A CUDA device as its driver describes it.
struct DeviceInfo {
  std::string name;
  std::string pci_bus_id;  // "0000:17:00.0", its identifier in the management library
  std::int32_t compute_major = 0, compute_minor = 0;
  std::int32_t sms = 0;
  Bytes total_memory;  // the most a process can get: the usable bytes of models/gpu
  Bytes free_memory;
  Bytes l2;
};

/// The devices found, or the reason why there are none.
struct DeviceList {
  std::vector<DeviceInfo> devices;
  std::string driver;   // "13.0"; empty without a driver
  std::string problem;  // why there are none: built without CUDA, no driver, no device
};

/// Queries the CUDA runtime. Never throws: the absence of devices is a result.
[[nodiscard]] DeviceList list_devices();

}  // namespace kvsim
