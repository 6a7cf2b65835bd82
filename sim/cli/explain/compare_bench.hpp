#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "sim/bench/bench_compare.hpp"

namespace kvsim {

/// Whether a file is a benchmark's output rather than a result of kvsim.
[[nodiscard]] bool is_bench_file(const std::filesystem::path& path);

/// Calls compare_bench on two files: a result (a folder or its result.json) and a benchmark's
/// output. Errors: as compare_bench; InputError for files that cannot be read.
[[nodiscard]] std::vector<BenchComparison> compare_bench_files(const std::filesystem::path& result,
                                                               const std::filesystem::path& file);

[[nodiscard]] std::string bench_comparison_text(const std::vector<BenchComparison>& all,
                                                std::size_t width);

}  // namespace kvsim
