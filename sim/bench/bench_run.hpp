#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Times of one kind in seconds, as a benchmark client summarized them over its requests.
struct BenchTimes {
  std::optional<double> mean{}, median{}, p90{}, p95{}, p99{};
};

/// One load point of a benchmark, as its tool wrote it.
struct BenchRun {
  std::string place;             // "FILE"; "FILE:LINE" or "FILE: /benchmarks/2" if it has several
  std::string_view tool;         // "vllm bench serve", …
  std::optional<double> rate{};  // requests per second; nullopt: not limited
  double gap_cv = 1;  // with a rate: coefficient of variation of the time between requests
  std::optional<std::int64_t> users{};     // maximum number of concurrent requests
  bool states_load = true;                 // false if the file contains neither rate nor users
  std::optional<std::int64_t> requests{};  // completed requests
  std::optional<std::int64_t> failed{};    // failed requests; nullopt: not in the file
  std::optional<double> input_tokens{}, output_tokens{};  // means per request
  /// TPOT: (E2E - TTFT) / (output tokens - 1) of a request.
  BenchTimes ttft{}, tpot{}, e2e{};
  std::optional<double> request_s{}, output_tok_s{};  // rates
};

/// Returns the runs in the text of a file of `vllm bench serve --save-result` (or --append-result),
/// SGLang's bench_serving, AIPerf (profile_export_aiperf.json or profile_export.jsonl), GuideLLM or
/// inference-perf (lifecycle metrics of a stage or of the summary). The content determines the
/// format. Unused keys may have any type or be missing. `file`: its name in messages. Errors:
/// InputError "PLACE: expected …, got …" for text in no known format, a value of a type that its
/// tool does not write, or a run without any latency or without a completed request.
[[nodiscard]] std::vector<BenchRun> parse_bench(std::string_view text, const std::string& file);

/// Returns a note with the counts of a run with failed requests; nullopt if none failed or the file
/// does not contain the count.
[[nodiscard]] std::optional<std::string> failed_note(const BenchRun& run);

}  // namespace kvsim
