#include "sim/cli/validate/describe_devices.hpp"

#include <fmt/format.h>

#include "models/units/units_format.hpp"
#include "sim/report/text/table.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;
using Align = Table::Align;

constexpr std::string_view kLookedFor = "a CUDA driver, and devices through the CUDA runtime";

std::string capability(const DeviceInfo& device) {
  return fmt::format("{}.{}", device.compute_major, device.compute_minor);
}

ordered_json text_or_null(const std::string& text) {
  return text.empty() ? ordered_json(nullptr) : ordered_json(text);
}

}  // namespace

ordered_json devices_json(const DeviceList& list) {
  ordered_json out{{"entries", ordered_json::array()},
                   {"looked_for", kLookedFor},
                   {"driver", text_or_null(list.driver)},
                   {"problem", text_or_null(list.problem)}};
  for (const DeviceInfo& device : list.devices) {
    out["entries"].push_back({{"name", device.name},
                              {"compute_capability", capability(device)},
                              {"sms", device.sms},
                              {"total_memory_bytes", device.total_memory.count()},
                              {"free_memory_bytes", device.free_memory.count()},
                              {"l2_bytes", device.l2.count()}});
  }
  return out;
}

std::string devices_text(const DeviceList& list, std::size_t width) {
  std::string out;
  if (list.devices.empty()) {
    out = fmt::format("no CUDA devices; looked for: {}\n", kLookedFor);
  } else {
    Table table{{{"device", Align::kLeft}, {"compute"}, {"SMs"}, {"memory"}, {"free"}, {"L2"}}};
    for (const DeviceInfo& device : list.devices) {
      table.add_row({device.name, capability(device), fmt::format("{}", device.sms),
                     to_text(device.total_memory), to_text(device.free_memory),
                     to_text(device.l2)});
    }
    out = table.str(width);
  }
  if (!list.driver.empty()) out += fmt::format("driver: CUDA {}\n", list.driver);
  if (!list.problem.empty()) out += fmt::format("problem: {}\n", list.problem);
  return out;
}

}  // namespace kvsim
