#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "kernels/device/device_info.hpp"

namespace kvsim {

/// The entries of `kvsim list devices`: the devices of this machine. Other lists are of catalogues
/// (sim/report/catalogue/describe.hpp).
[[nodiscard]] nlohmann::ordered_json devices_json(const DeviceList& list);
[[nodiscard]] std::string devices_text(const DeviceList& list, std::size_t width);

}  // namespace kvsim
