// kvsim calibrate --device cuda: the rates that the kernels reach on the local GPU.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/cli/calibrate/command_calibrate.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/validate/device_report.hpp"
#include "sim/cli/validate/kernels_on_device.hpp"
#include "sim/report/files/atomic_file.hpp"
#include "sim/report/text/json_text.hpp"

namespace kvsim {
using nlohmann::ordered_json;

int calibrate_on_device(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no file");
  if (const std::string where = *arguments.value("device"); where != "cuda") {
    throw InputError{"--device", "cuda", fmt::format("\"{}\"", where)};
  }
  const auto path = arguments.value("out");
  if (!path) throw InputError{"calibrate --device", "-o FILE", "none"};
  const DeviceKernels timed = time_kernels({}, false);
  const KernelsScore& score = timed.score;
  if (!score.pass()) {  // times of wrong results are meaningless
    write_err(kernels_text(score, true, terminal_width()));
    return kDoesNotFit;
  }
  const ordered_json out = device_json(score, timed.device, timed.states, kernels::measure_device(),
                                       checked_date(arguments).value_or(utc_date()));
  write_file_atomically(*path, to_file_text(out));
  write_out(arguments.has("json")
                ? to_file_text(out)
                : fmt::format("{}wrote {}\n", kernels_text(score, false, terminal_width()), *path));
  return kDone;
}

}  // namespace kvsim
