#include "kernels/device/device_info.hpp"

namespace kvsim {

DeviceList list_devices() {
  DeviceList list;
  list.problem = "this kvsim was built without CUDA (configure where nvcc works)";
  return list;
}

}  // namespace kvsim
