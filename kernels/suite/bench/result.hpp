#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/shapes.hpp"

// Results of the suite of kernels: plain numbers, independent of the executor.

namespace kvsim::kernels {

/// Times of one case on a GPU, after a warm-up, with the L2 cache flushed before every sample.
struct KernelTiming {
  double median_us = 0;
  double spread = 0;  // half the interquartile range over the median
  std::int32_t samples = 0;
};

/// One kernel at one shape.
struct KernelResult {
  std::string name, shape, dtype;
  std::string family;  // operator family of the cost model (name_of(OpFamily))
  bool pass = true;
  bool compared = true;  // false: too large for its reference, only timed
  double error = 0;      // largest |got - expected| over the largest |expected|, of all outputs
  double allowed = 0;    // by dtype; of the output closest to its limit
  KernelTraffic model;
  std::optional<KernelTraffic> counted{};  // by the simulator; GPUs do not count payload
  std::optional<KernelTiming> timing{};
  std::string problem{};  // why it failed
  std::string skipped{};  // the missing requirement; if set, nothing was run
};

struct SuiteOptions {
  std::uint64_t seed = 0;  // of all inputs
  std::string only{};      // a kernel's name; empty: all
  bool timed = false;      // on a GPU: adds sizes worth timing and times every case
  /// On a GPU: each case of kProfiledBytes or more is launched once between cudaProfilerStart and
  /// cudaProfilerStop, neither compared nor timed; other cases and library kernels are left out.
  bool profiled = false;
};
inline constexpr Bytes kProfiledBytes{16 << 20};

/// Names of the kernels in the suite, in its order.
[[nodiscard]] std::vector<std::string> suite_kernels();

/// Runs every case of the suite in the simulator. A case that faults has a result with `problem`.
/// Errors: ContractError if options.only is not in suite_kernels().
[[nodiscard]] std::vector<KernelResult> run_suite_in_simulator(const SuiteOptions& options);
/// Does the same on the first CUDA device. Errors: as above; std::runtime_error without a device
/// (call list_devices() first), or if a CUDA call fails outside a case.
[[nodiscard]] std::vector<KernelResult> run_suite_on_device(const SuiteOptions& options);
/// Why the first CUDA device is unusable in this process, for example after a faulting kernel;
/// empty if it is usable.
[[nodiscard]] std::string device_fault();

}  // namespace kvsim::kernels
