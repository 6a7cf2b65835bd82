#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kernels/suite/bench/result.hpp"
#include "sim/report/chart/chart.hpp"

namespace kvsim {

/// Bytes between a GPU and its memory during the launches of one case, from hardware counters.
struct DramBytes {
  double read = 0, written = 0;
};

/// The results of `kvsim validate kernels`.
struct KernelsScore {
  std::string device;      // "cuda-sim", or the GPU's name
  std::string driver;      // of a GPU
  std::uint64_t seed = 0;  // of all inputs
  std::vector<kernels::KernelResult> results{};
  std::vector<double> predicted_us{};  // per result; empty: no GPU was timed, or it is unknown
  std::vector<std::optional<DramBytes>> dram{};  // per result; empty: no profiler was used
  std::vector<std::string> notes{};

  [[nodiscard]] bool pass() const;
};

[[nodiscard]] inline Bytes bytes_of(const kernels::KernelTraffic& t) { return t.loaded + t.stored; }
/// GB/s of a timed case, from the formula's bytes.
[[nodiscard]] inline double gb_s(const kernels::KernelResult& r) {
  return static_cast<double>(bytes_of(r.model).count()) / r.timing->median_us / 1e3;
}

/// Adds a profiler's DRAM bytes to the score's cases. `profiled` is the document of the profiled
/// run of the same program, with cases in launch order; `csv` is the profiler's table. Errors:
/// InputError if the table is malformed or does not have these launches.
void add_counters(KernelsScore& score, const std::string& profiled, const std::string& csv);

/// Document "kvsim.validate-kernels/1".
[[nodiscard]] nlohmann::ordered_json kernels_json(const KernelsScore& score);
/// A line for each kernel and dtype or, with `cases`, for each shape; failures with their reasons;
/// GPU times.
[[nodiscard]] std::string kernels_text(const KernelsScore& score, bool cases, std::size_t width);
/// Errors relative to their bounds, and counted bytes next to the formula's: one bar per kernel.
[[nodiscard]] std::vector<Figure> kernels_figures(const KernelsScore& score);

}  // namespace kvsim
