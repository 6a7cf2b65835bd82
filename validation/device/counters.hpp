#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "validation/device/profiler_csv.hpp"

namespace kvsim {

/// A profiler's results for a program's launches, or the reason why there are none.
struct ProfilerRun {
  std::string problem;  // empty on success
  std::string csv;      // output of the profiler
  std::string output;   // output of the profiled program
};

/// Runs `program` under Nsight Compute's `ncu` (from PATH, else from CUDA's default installation
/// folder) for at most `limit`. It counts the DRAM bytes of launches between cudaProfilerStart and
/// cudaProfilerStop. A missing program is not an exception but a `problem`: "ncu not found".
[[nodiscard]] ProfilerRun run_profiler(const std::vector<std::string>& program,
                                       std::chrono::milliseconds limit);

/// Returns the path of `name` in the first of `folders` that contains it as an executable; empty if
/// none does.
[[nodiscard]] std::filesystem::path find_program(const std::string& name,
                                                 const std::vector<std::filesystem::path>& folders);

}  // namespace kvsim
