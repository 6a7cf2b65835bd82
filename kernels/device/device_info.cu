#include <cuda_runtime.h>

#include "kernels/device/device_info.hpp"

namespace kvsim {
namespace {

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

}  // namespace

DeviceList list_devices() {
  DeviceList list;
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    list.problem = "no CUDA driver is installed";
    return list;
  }
  list.driver = version_text(version);
  int count = 0;
  if (const cudaError_t status = cudaGetDeviceCount(&count); status != cudaSuccess) {
    list.problem = std::string{"the CUDA runtime finds no device: "} + cudaGetErrorString(status);
    return list;
  }
  for (int id = 0; id < count; ++id) {
    cudaDeviceProp properties{};
    std::size_t free = 0;
    std::size_t total = 0;
    if (cudaGetDeviceProperties(&properties, id) != cudaSuccess ||
        cudaSetDevice(id) != cudaSuccess || cudaMemGetInfo(&free, &total) != cudaSuccess) {
      list.problem = "device " + std::to_string(id) +
                     " does not answer: " + cudaGetErrorString(cudaGetLastError());
      continue;
    }
    DeviceInfo info;
    info.name = properties.name;
    char address[32] = {};
    if (cudaDeviceGetPCIBusId(address, sizeof address, id) == cudaSuccess)
      info.pci_bus_id = address;
    info.compute_major = properties.major;
    info.compute_minor = properties.minor;
    info.sms = properties.multiProcessorCount;
    info.total_memory = Bytes{static_cast<std::int64_t>(total)};
    info.free_memory = Bytes{static_cast<std::int64_t>(free)};
    info.l2 = Bytes{static_cast<std::int64_t>(properties.l2CacheSize)};
    list.devices.push_back(info);
  }
  if (count == 0) list.problem = "the CUDA runtime finds no device";
  return list;
}

}  // namespace kvsim
