#include "kernels/device_info.hpp"

namespace kvsim {

DeviceList list_devices() {
  DeviceList list;
  list.problem =
      "this kvsim was built without CUDA (configure with the preset cuda where nvcc is installed)";
  return list;
}

}  // namespace kvsim
