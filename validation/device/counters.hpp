#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "validation/device/profiler_csv.hpp"

namespace kvsim {

/// A profiler's results for a program's launches, or why there are none.
struct ProfilerRun {
  std::string problem;  // empty: it ran
  std::string csv;      // what it wrote
  std::string output;   // what the program under it printed
};

/// Runs `program` under Nsight Compute's `ncu` (of PATH, else where CUDA's installer puts it),
/// which counts the DRAM bytes of what is launched between cudaProfilerStart and cudaProfilerStop,
/// for `limit` at most. Never throws for what is missing: "ncu not found" is an answer.
[[nodiscard]] ProfilerRun run_profiler(const std::vector<std::string>& program,
                                       std::chrono::milliseconds limit);

/// The first of `folders` that has an executable `name`; empty: none.
[[nodiscard]] std::filesystem::path find_program(const std::string& name,
                                                 const std::vector<std::filesystem::path>& folders);

}  // namespace kvsim
