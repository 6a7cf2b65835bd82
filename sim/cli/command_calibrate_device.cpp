// kvsim calibrate --device cuda: what the kernels reach on the GPU at hand.

#include <chrono>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/cli/command.hpp"
#include "sim/cli/command_calibrate.hpp"
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

/// GB/s that each stream kernel reached at its largest size: the ceilings of everything else.
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
    out[word] = static_cast<double>((r->model.loaded + r->model.stored).count()) /
                r->timing->median_us / 1e3;
  }
  return out;
}

}  // namespace

int calibrate_on_device(const Arguments& arguments) {
  arguments.expect_words(0, 0, "no file");
  if (const std::string where = *arguments.value("device"); where != "cuda") {
    throw InputError{"--device", "cuda", fmt::format("\"{}\"", where)};
  }
  const auto path = arguments.value("out");
  if (!path) throw InputError{"calibrate --device", "-o FILE", "none"};
  const KernelsScore score = time_kernels({});
  if (!score.pass()) {  // times of wrong results mean nothing
    write_err(kernels_text(score, true, terminal_width()));
    return kDoesNotFit;
  }
  const DeviceInfo device = list_devices().devices.front();
  ordered_json kernels = kernels_json(score);
  const ordered_json out{
      {"schema", "kvsim.calibrate-device/1"},
      {"device", device.name},
      {"compute_capability", fmt::format("{}.{}", device.compute_major, device.compute_minor)},
      {"sms", device.sms},
      {"usable_bytes", device.total_memory.count()},
      {"l2_bytes", device.l2.count()},
      {"cuda_driver", score.driver},
      {"date", arguments.value("date").value_or(utc_date())},
      {"ceilings_gb_s", ceilings(score)},
      {"kernels", std::move(kernels.at("kernels"))}};
  write_file_atomically(*path, to_file_text(out));
  write_out(arguments.has("json")
                ? to_file_text(out)
                : fmt::format("{}wrote {}\n", kernels_text(score, false, terminal_width()), *path));
  return kDone;
}

}  // namespace kvsim
