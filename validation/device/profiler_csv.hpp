#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Bytes between a GPU and its memory while one kernel ran.
struct LaunchCounters {
  std::string kernel;  // as the profiler calls it
  double dram_read = 0, dram_written = 0;
};

/// Reads what Nsight Compute prints under `--csv --page details --metrics
/// dram__bytes_read.sum,dram__bytes_write.sum`: a line a launch and metric, units with or without
/// decimal prefixes (byte, Kbyte, …), thousands parted by commas; lines that begin with "==" are
/// the profiler's own words. Launches in the order of their IDs' first lines; other metrics are
/// passed over. Errors: InputError "PLACE:LINE: …" where there is no table, a column is missing, a
/// value is no number of bytes, a unit is unknown, or a launch has a metric twice or not at all.
[[nodiscard]] std::vector<LaunchCounters> read_profiler_csv(std::string_view text,
                                                            const std::string& place);

/// What the profiler says went wrong, in a few words; empty: nothing. Of counters that the driver
/// keeps for administrators "counters not permitted: ERR_NVGPUCTRPERM".
[[nodiscard]] std::string profiler_problem(std::string_view text);

/// Sums over the launches of each case: the first `launches[0]` rows are the first case's, and so
/// on. Errors: InputError where there are more or fewer rows than launches.
[[nodiscard]] std::vector<LaunchCounters> counters_by_case(
    const std::vector<LaunchCounters>& rows, const std::vector<std::int64_t>& launches,
    const std::string& place);

}  // namespace kvsim
