#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "kernels/suite/bench/result.hpp"
#include "sim/report/chart/chart.hpp"

namespace kvsim {

/// Between a GPU and its memory while the launches of one case ran, by its hardware counters.
struct DramBytes {
  double read = 0, written = 0;
};

/// What `kvsim validate kernels` has found.
struct KernelsScore {
  std::string device;      // "cuda-sim", or the GPU's name
  std::string driver;      // of a GPU
  std::uint64_t seed = 0;  // of all inputs
  std::vector<kernels::KernelResult> results{};
  std::vector<double> predicted_us{};  // of each; empty: no GPU was timed, or none is known
  std::vector<std::optional<DramBytes>> dram{};  // of each; empty: no profiler was used
  std::vector<std::string> notes{};

  [[nodiscard]] bool pass() const;
};

[[nodiscard]] inline Bytes bytes_of(const kernels::KernelTraffic& t) { return t.loaded + t.stored; }
/// Bytes per second of a timed case, by the formula's bytes.
[[nodiscard]] inline double gb_s(const kernels::KernelResult& r) {
  return static_cast<double>(bytes_of(r.model).count()) / r.timing->median_us / 1e3;
}

/// Gives the score's cases the DRAM bytes that a profiler counted of a run of the same program:
/// `profiled` is that run's document, its cases in the order of their launches, `csv` the
/// profiler's table. Errors: InputError of the table, or where it has not those launches.
void add_counters(KernelsScore& score, const std::string& profiled, const std::string& csv);

/// Document "kvsim.validate-kernels/1".
[[nodiscard]] nlohmann::ordered_json kernels_json(const KernelsScore& score);
/// A line for each kernel and dtype, or, with `cases`, for each shape; what failed, and why; the
/// times of a GPU.
[[nodiscard]] std::string kernels_text(const KernelsScore& score, bool cases, std::size_t width);
/// Errors relative to their bounds, and counted bytes next to the formula's: one bar per kernel.
[[nodiscard]] std::vector<Figure> kernels_figures(const KernelsScore& score);

}  // namespace kvsim
