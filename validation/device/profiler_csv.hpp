#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Bytes between a GPU and its memory while one kernel ran.
struct LaunchCounters {
  std::string kernel;  // name reported by the profiler
  double dram_read = 0, dram_written = 0;
};

/// Reads the output of Nsight Compute with `--csv --page details --metrics
/// dram__bytes_read.sum,dram__bytes_write.sum`: one line per launch and metric, units with or
/// without decimal prefixes (byte, Kbyte, …), thousands separated by commas. Lines that begin with
/// "==" are messages of the profiler. Launches are in the order of their IDs' first lines; other
/// metrics are skipped. Errors: InputError "PLACE:LINE: …" if there is no table, a column is
/// missing, a value is not a number of bytes, a unit is unknown, or a launch has a metric twice or
/// not at all.
[[nodiscard]] std::vector<LaunchCounters> read_profiler_csv(std::string_view text,
                                                            const std::string& place);

/// Returns a short description of an error reported by the profiler; empty if there is none. If the
/// driver restricts counters to administrators: "counters not permitted: ERR_NVGPUCTRPERM".
[[nodiscard]] std::string profiler_problem(std::string_view text);

/// Returns sums over the launches of each case: the first `launches[0]` rows belong to the first
/// case, and so on. Errors: InputError if the number of rows differs from the number of launches.
[[nodiscard]] std::vector<LaunchCounters> counters_by_case(
    const std::vector<LaunchCounters>& rows, const std::vector<std::int64_t>& launches,
    const std::string& place);

}  // namespace kvsim
