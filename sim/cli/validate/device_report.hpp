#pragma once

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kernels/device/device_info.hpp"
#include "kernels/device/device_state.hpp"
#include "kernels/suite/measure.hpp"
#include "sim/cli/validate/kernels_report.hpp"

namespace kvsim {

/// Clocks and power before and after the kernel runs.
struct DeviceStates {
  DeviceState before, after;
};

/// Today in UTC: "2026-01-31".
[[nodiscard]] std::string utc_date();

/// Document "kvsim.calibrate-device/1": the rates that kernels reached on a GPU, its state, and
/// other measurements of it. models/cost/rates/device_calibration.hpp reads it.
[[nodiscard]] nlohmann::ordered_json device_json(const KernelsScore& score,
                                                 const DeviceInfo& device,
                                                 const DeviceStates& states,
                                                 const std::vector<kernels::Measurement>& measured,
                                                 const std::string& date);

}  // namespace kvsim
