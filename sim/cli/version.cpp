#include "sim/cli/version.hpp"

#include <algorithm>
#include <cstdint>
#include <map>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/cost/kernels/calibration.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/explorer/page/explorer_page.hpp"
#include "sim/report/text/json_text.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/version.hpp"
#include "sim/sweep/join_ranks.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

#if defined(__clang__)
constexpr const char* kCompiler = "clang " __clang_version__;
#elif defined(__GNUC__)
constexpr const char* kCompiler = "g++ " __VERSION__;
#else
constexpr const char* kCompiler = "unknown compiler";
#endif

// From sim/cli/CMakeLists.txt.
constexpr const char* kBuildType = KVSIM_BUILD_TYPE;
constexpr const char* kArch = KVSIM_BUILD_ARCH;
constexpr bool kCuda = KVSIM_BUILD_CUDA != 0;
constexpr bool kPython = KVSIM_BUILD_PYTHON != 0;

/// Calibrations of one GPU.
struct GpuCalibrations {
  std::int64_t entries = 0;
  std::int64_t rows = 0;      // fitted timings
  std::int64_t held_out = 0;  // timings held out of the fit
  std::string date;           // date of the latest fit
};

std::map<std::string, GpuCalibrations> by_gpu() {
  std::map<std::string, GpuCalibrations> out;
  for (const KernelCalibrationFile& file : builtin_calibrations()) {
    GpuCalibrations& one = out[file.gpu];
    one.date = std::max(one.date, file.date);
    for (const KernelCalibration& entry : file.entries) {
      ++one.entries;
      one.rows += entry.fitted.n;
      one.held_out += entry.held_out.n;
    }
  }
  return out;
}

std::string version_text() {
  constexpr std::size_t kWidth = 80;
  const auto word = [](bool on) { return on ? "on" : "off"; };
  std::string out = fmt::format("kvsim {}\n", kvsim_version());
  out += paragraph(
      fmt::format("build: {}, {}, arch {}, CUDA {}, MPI {}, explorer {}, Python module {}",
                  kBuildType, kCompiler, kArch, word(kCuda), word(built_with_mpi()),
                  word(!explorer_core().empty()), word(kPython)),
      kWidth, 2);
  std::int64_t entries = 0;
  std::int64_t rows = 0;
  std::string first, last;
  std::vector<std::string> gpus;
  for (const auto& [gpu, one] : by_gpu()) {
    entries += one.entries;
    rows += one.rows;
    if (first.empty() || one.date < first) first = one.date;
    last = std::max(last, one.date);
    gpus.push_back(gpu);
  }
  if (gpus.empty()) return out + "calibrations: none\n";
  return out +
         paragraph(fmt::format("calibrations: {} kernels of {} GPUs, {} timings, fitted {}: {}",
                               entries, gpus.size(), with_commas(rows),
                               first == last ? first : fmt::format("{} to {}", first, last),
                               fmt::join(gpus, ", ")),
                   kWidth, 2);
}

ordered_json version_json() {
  ordered_json out{{"schema", "kvsim.version/1"},
                   {"version", kvsim_version()},
                   {"build",
                    {{"type", kBuildType},
                     {"compiler", kCompiler},
                     {"arch", kArch},
                     {"cuda", kCuda},
                     {"mpi", built_with_mpi()},
                     {"explorer", !explorer_core().empty()},
                     {"python", kPython}}}};
  out["calibrations"] = ordered_json::array();
  for (const auto& [gpu, one] : by_gpu()) {
    out["calibrations"].push_back({{"gpu", gpu},
                                   {"kernels", one.entries},
                                   {"rows_fitted", one.rows},
                                   {"rows_held_out", one.held_out},
                                   {"date", one.date}});
  }
  return out;
}

}  // namespace

int write_version(const std::vector<std::string>& words) {
  const bool json = words.size() == 1 && words.front() == "--json";
  if (!words.empty() && !json) {
    throw InputError{
        fmt::format("--version: {}",
                    unknown_name("option", words.front(), std::vector<std::string>{"--json"}))};
  }
  write_out(json ? to_file_text(version_json()) : version_text());
  return kDone;
}

}  // namespace kvsim
