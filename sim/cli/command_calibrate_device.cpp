// kvsim calibrate --device cuda: what the kernels reach on the GPU at hand.

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/command_calibrate.hpp"
#include "sim/cli/device_report.hpp"
#include "sim/cli/kernels_on_device.hpp"
#include "sim/cli/terminal.hpp"
#include "sim/report/atomic_file.hpp"
#include "sim/report/result_json.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

std::string utc_date() {
  const auto day = std::chrono::floor<std::chrono::days>(std::chrono::system_clock::now());
  const std::chrono::year_month_day date{day};
  return fmt::format("{:04}-{:02}-{:02}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()));
}

}  // namespace

int calibrate_on_device(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no file");
  if (const std::string where = *arguments.value("device"); where != "cuda") {
    throw InputError{"--device", "cuda", fmt::format("\"{}\"", where)};
  }
  const auto path = arguments.value("out");
  if (!path) throw InputError{"calibrate --device", "-o FILE", "none"};
  DeviceStates states;
  const auto state = [] {
    const DeviceList list = list_devices();
    return list.devices.empty() ? DeviceState{.problem = list.problem}
                                : read_device_state(list.devices.front().pci_bus_id);
  };
  states.before = state();
  const KernelsScore score = time_kernels({});
  if (!score.pass()) {  // times of wrong results mean nothing
    write_err(kernels_text(score, true, terminal_width()));
    return kDoesNotFit;
  }
  const std::vector<kernels::Measurement> measured = kernels::measure_device();
  states.after = state();
  const ordered_json out = device_json(score, list_devices().devices.front(), states, measured,
                                       arguments.value("date").value_or(utc_date()));
  write_file_atomically(*path, to_file_text(out));
  write_out(arguments.has("json")
                ? to_file_text(out)
                : fmt::format("{}wrote {}\n", kernels_text(score, false, terminal_width()), *path));
  return kDone;
}

}  // namespace kvsim
