#include "sim/cli/validate/device_report.hpp"

#include <chrono>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// GB/s of each stream kernel at its largest size: the upper bounds of all other kernels.
ordered_json ceilings(const KernelsScore& score) {
  std::map<std::string, const kernels::KernelResult*> largest;
  for (const kernels::KernelResult& r : score.results) {
    if (!r.name.starts_with("stream_") || !r.timing) continue;
    const kernels::KernelResult*& at = largest[r.name.substr(7)];
    if (at == nullptr || r.model.loaded + r.model.stored > at->model.loaded + at->model.stored) {
      at = &r;
    }
  }
  ordered_json out = ordered_json::object();
  for (const auto& [word, r] : largest) {
    out[word] = gb_s(*r);
  }
  return out;
}

ordered_json state_json(const DeviceState& s) {
  if (!s.problem.empty()) return {{"problem", s.problem}};
  return {{"sm_mhz", s.sm_mhz},
          {"memory_mhz", s.memory_mhz},
          {"most_sm_mhz", s.max_sm_mhz},
          {"most_memory_mhz", s.max_memory_mhz},
          {"performance_state", s.performance_state},
          {"power_w", s.power_w},
          {"power_limit_w", s.power_limit_w},
          {"celsius", s.celsius},
          {"throttle_reasons", s.throttle_reasons}};
}

ordered_json measurement_json(const kernels::Measurement& m) {
  if (!m.skipped.empty()) {
    return {{"name", m.name}, {"shape", m.shape}, {"skipped", m.skipped}};
  }
  return {{"name", m.name},   {"shape", m.shape},   {"unit", m.unit},
          {"value", m.value}, {"spread", m.spread}, {"samples", m.samples}};
}

}  // namespace

std::string utc_date() {
  const auto day = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  const std::chrono::year_month_day date{day};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

ordered_json device_json(const KernelsScore& score, const DeviceInfo& device,
                         const DeviceStates& states,
                         const std::vector<kernels::Measurement>& measured,
                         const std::string& date) {
  ordered_json measurements = ordered_json::array();
  for (const kernels::Measurement& m : measured) measurements.push_back(measurement_json(m));
  return {{"schema", "kvsim.calibrate-device/1"},
          {"device", device.name},
          {"compute_capability", fmt::format("{}.{}", device.compute_major, device.compute_minor)},
          {"sms", device.sms},
          {"usable_bytes", device.total_memory.count()},
          {"l2_bytes", device.l2.count()},
          {"cuda_driver", score.driver},
          {"date", date},
          {"state", {{"before", state_json(states.before)}, {"after", state_json(states.after)}}},
          {"ceilings_gb_s", ceilings(score)},
          {"measurements", std::move(measurements)},
          {"kernels", kernels_json(score).at("kernels")}};
}

}  // namespace kvsim
