#include "kernels/device/device_state.hpp"

#include <memory>

#include <dlfcn.h>

namespace kvsim {
namespace {

// The used part of nvml.h, whose interface is stable by name and version suffix.
using Device = void*;
constexpr int kSuccess = 0;
constexpr int kClockSm = 1;
constexpr int kClockMemory = 2;
constexpr int kTemperatureGpu = 0;

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

/// Calls `name` of the library; false if it is missing or fails.
template <class... Arguments>
bool call(const Library& library, const char* name, Arguments... arguments) {
  using Function = int (*)(Arguments...);
  const auto function = reinterpret_cast<Function>(dlsym(library.get(), name));
  return function != nullptr && function(arguments...) == kSuccess;
}

std::int32_t clock(const Library& nvml, const char* name, Device device, int domain) {
  unsigned mhz = 0;
  return call(nvml, name, device, domain, &mhz) ? static_cast<std::int32_t>(mhz) : 0;
}
double watts(const Library& nvml, const char* name, Device device) {
  unsigned milliwatts = 0;
  return call(nvml, name, device, &milliwatts) ? milliwatts / 1e3 : 0;
}

}  // namespace

DeviceState read_device_state(const std::string& pci_bus_id) {
  DeviceState state;
  const Library nvml{dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)};
  if (!nvml) {
    state.problem = "libnvidia-ml.so.1, which reports clocks and power, was not found";
    return state;
  }
  if (!call(nvml, "nvmlInit_v2")) {
    state.problem = "NVML finds no driver that responds";
    return state;
  }
  Device device = nullptr;
  if (!call(nvml, "nvmlDeviceGetHandleByPciBusId_v2", pci_bus_id.c_str(), &device)) {
    state.problem = "NVML has no device at PCI address " + pci_bus_id;
  } else {
    state.sm_mhz = clock(nvml, "nvmlDeviceGetClockInfo", device, kClockSm);
    state.memory_mhz = clock(nvml, "nvmlDeviceGetClockInfo", device, kClockMemory);
    state.max_sm_mhz = clock(nvml, "nvmlDeviceGetMaxClockInfo", device, kClockSm);
    state.max_memory_mhz = clock(nvml, "nvmlDeviceGetMaxClockInfo", device, kClockMemory);
    state.power_w = watts(nvml, "nvmlDeviceGetPowerUsage", device);
    state.power_limit_w = watts(nvml, "nvmlDeviceGetEnforcedPowerLimit", device);
    int performance = -1;
    if (call(nvml, "nvmlDeviceGetPerformanceState", device, &performance)) {
      state.performance_state = performance;
    }
    unsigned celsius = 0;
    if (call(nvml, "nvmlDeviceGetTemperature", device, kTemperatureGpu, &celsius)) {
      state.celsius = static_cast<std::int32_t>(celsius);
    }
    unsigned long long reasons = 0;
    if (call(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", device, &reasons)) {
      state.throttle_reasons = reasons;
    }
  }
  (void)call(nvml, "nvmlShutdown");
  return state;
}

}  // namespace kvsim
