#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// One measured value of a run, in base units: seconds, tokens or requests per second, counts,
/// bytes, shares.
struct ServedMetric {
  std::string metric;  // "ttft", "output_throughput", …
  std::string stat;    // "mean", "median", "p90", "total", …
  std::string unit;    // as in the file
  double value = 0;
  std::size_t line = 0;  // of the file, from 1
};

/// One run of a real service: its settings as in the table, and its measured values.
struct ServedRun {
  std::string id, source, date, gpu, gpu_count, tp, pp, ep_dp, model, weight_dtype, kv_dtype,
      engine, engine_version, engine_options, workload, input_tokens, input_spread, output_tokens,
      output_spread, arrival, rate_rps, concurrency, num_requests, seed, not_stated, note;
  std::size_t line = 0;  // of its first row
  std::vector<ServedMetric> metrics;
  std::string copy_of;  // another run (machine, model or engine) with the same values; usually ""
};

/// Reads a table of serving runs in long format: a row has one metric of a run and all of the run's
/// settings. Runs are in the order of their first rows. Errors: InputError "FILE:LINE: column: …"
/// on a missing column, a row without run or metric, a value that is not a finite number, an
/// unknown unit of a compared metric, or a setting that differs between rows of a run (a missing
/// setting is taken from other rows).
[[nodiscard]] std::vector<ServedRun> read_served_runs(const std::filesystem::path& path);
/// The same for a text; `name` is the file's name in messages.
[[nodiscard]] std::vector<ServedRun> parse_served_runs(std::string_view text,
                                                       std::string_view name);

/// Means over time (and the maximum of `kv_usage`) of an engine's counts: a table of running and
/// waiting requests and KV usage in percent, at equal intervals. Errors: InputError as above.
[[nodiscard]] std::vector<ServedMetric> read_served_timeline(const std::filesystem::path& path);

}  // namespace kvsim
