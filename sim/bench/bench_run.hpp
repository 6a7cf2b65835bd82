#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Seconds of one kind, as a benchmark client summed them up over its requests.
struct BenchTimes {
  std::optional<double> mean{}, median{}, p90{}, p95{}, p99{};
};

/// One load point of a benchmark, as its tool wrote it.
struct BenchRun {
  std::string place;             // "FILE", or "FILE:LINE" or "FILE: /benchmarks/2" of several
  std::string_view tool;         // "vllm bench serve", …
  std::optional<double> rate{};  // requests a second; nullopt: not limited
  double gap_cv = 1;  // with a rate: coefficient of variation of the time between requests
  std::optional<std::int64_t> users{};     // requests at once, at most
  bool states_load = true;                 // false: rate and users are not in the file
  std::optional<std::int64_t> requests{};  // that completed
  std::optional<std::int64_t> failed{};    // requests; nullopt: not in the file
  std::optional<double> input_tokens{}, output_tokens{};  // of a request, means
  /// TPOT: (E2E - TTFT) / (output tokens - 1) of a request.
  BenchTimes ttft{}, tpot{}, e2e{};
  std::optional<double> request_s{}, output_tok_s{};  // rates
};

/// The runs in the text of a file of `vllm bench serve --save-result` (or --append-result),
/// SGLang's bench_serving, AIPerf (profile_export_aiperf.json or profile_export.jsonl), GuideLLM or
/// inference-perf (a stage's or the summary's lifecycle metrics); the content says which. Keys that
/// are not used may be of any kind or missing. `file`: its name in messages. Errors: InputError
/// "PLACE: expected …, got …" for text that is none of these, a value of another kind than its tool
/// writes, or a run without any latency or without a completed request.
[[nodiscard]] std::vector<BenchRun> parse_bench(std::string_view text, const std::string& file);

/// A note with the counts of a run with failed requests; nullopt: none failed, or not in the file.
[[nodiscard]] std::optional<std::string> failed_note(const BenchRun& run);

}  // namespace kvsim
