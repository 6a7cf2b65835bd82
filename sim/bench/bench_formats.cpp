#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/json/python_numbers.hpp"
#include "models/units/error.hpp"
#include "sim/bench/bench_run.hpp"

namespace kvsim {
namespace {

constexpr double kMilli = 1e-3;
constexpr double kLongest = 1e7;    // seconds, four months
constexpr double kMaxCount = 1e12;  // tokens, requests
constexpr const char* kTools =
    "a result of vllm bench serve, SGLang bench_serving, AIPerf, GuideLLM or inference-perf";

std::optional<double> number(const Field& object, std::string_view key, double max,
                             double unit = 1) {
  const auto field = object.find(key);
  if (!field) return std::nullopt;
  return field->number(0, max / unit) * unit;
}
std::optional<double> count(const Field& object, std::string_view key) {
  return number(object, key, kMaxCount);
}
std::optional<double> seconds(const Field& object, std::string_view key, double unit) {
  return number(object, key, kLongest, unit);
}
/// Rejects an invalid time. The duration of a run is not used, but a file in which it is invalid is
/// damaged or in another unit.
void check_seconds(const Field& object, std::string_view key, double unit = 1) {
  (void)seconds(object, key, unit);
}
std::optional<double> ratio(const std::optional<double>& a, const std::optional<double>& b) {
  if (!a || !b || *b <= 0) return std::nullopt;
  return *a / *b;
}
/// A limit that tools write as a number, "inf", Infinity (read as null) or null.
std::optional<double> limit(const Field& object, std::string_view key) {
  const auto field = object.find(key);
  if (!field) return std::nullopt;
  if (field->is_string()) {
    if (field->string() == "inf") return std::nullopt;
    field->expected("a number or \"inf\"");
  }
  const double value = field->number(0, kMaxCount);
  return value > 0 ? std::optional{value} : std::nullopt;
}
std::optional<std::int64_t> whole(const std::optional<double>& value) {
  if (!value) return std::nullopt;
  return std::llround(*value);
}
Field object_at(const Field& object, std::string_view key) {
  Field out = object.at(key);
  if (!out.is_object()) out.expected("an object");
  return out;
}

// vLLM and SGLang: one flat object per run, "mean_ttft_ms".

bool is_flat(const Field& run) { return run.has("completed") && run.has("duration"); }

BenchTimes flat_times(const Field& run, std::string_view name) {
  const auto at = [&](std::string_view stat) {
    return seconds(run, fmt::format("{}_{}_ms", stat, name), kMilli);
  };
  return {at("mean"), at("median"), at("p90"), at("p95"), at("p99")};
}

BenchRun flat_run(const Field& run) {
  const bool sglang =
      run.has("mean_e2e_latency_ms") || run.has("server_info") || run.has("dataset_name");
  BenchRun out{.place = run.place(),
               .tool = sglang ? "SGLang bench_serving" : "vllm bench serve",
               .requests = whole(count(run, "completed"))};
  check_seconds(run, "duration");
  // SGLang's mooncake workload: requests arrive as recorded in its file.
  const auto rate = run.find("request_rate");
  out.states_load = !(rate && rate->is_string() && rate->string() == "trace");
  if (out.states_load) {
    out.rate = limit(run, "request_rate");
    out.users = whole(limit(run, "max_concurrency"));
  }
  // vLLM's gaps are gamma distributed; burstiness is the shape.
  constexpr double kMinShape = 1e-3;
  if (const auto shape = run.find("burstiness"); shape && !shape->is_null()) {
    out.gap_cv = 1 / std::sqrt(shape->number(kMinShape, kMaxCount));
  }
  const auto done = count(run, "completed");
  // Releases without "failed" record how many requests the client sent.
  const auto sent = count(run, "num_prompts");
  out.failed = whole(count(run, "failed"));
  if (!out.failed && sent && done) out.failed = whole(std::max(*sent - *done, 0.0));
  out.input_tokens = ratio(count(run, "total_input_tokens"), done);
  out.output_tokens = ratio(count(run, "total_output_tokens"), done);
  out.ttft = flat_times(run, "ttft");
  out.tpot = flat_times(run, "tpot");
  out.e2e = flat_times(run, sglang ? "e2e_latency" : "e2el");
  out.request_s = count(run, "request_throughput");
  out.output_tok_s = count(run, "output_throughput");
  return out;
}

// AIPerf: one block per metric with its unit, or one record per request.

double unit_of(const Field& block) {
  const std::string unit = block.at("unit").string();
  struct Unit {
    std::string_view name;
    double seconds;
  };
  constexpr std::array kUnits{Unit{"ms", kMilli}, Unit{"s", 1}, Unit{"sec", 1}, Unit{"us", 1e-6},
                              Unit{"ns", 1e-9}};
  for (const Unit& known : kUnits) {
    if (known.name == unit) return known.seconds;
  }
  block.at("unit").expected("a unit of time: ns, us, ms or s");
}

bool is_aiperf(const Field& run) {
  return run.has("aiperf_version") || run.has("input_config") ||
         (run.has("schema_version") && run.has("time_to_first_token"));
}

BenchTimes aiperf_times(const Field& run, std::string_view name) {
  const auto block = run.find(name);
  if (!block) return {};
  const double unit = unit_of(*block);
  const auto at = [&](std::string_view key) { return seconds(*block, key, unit); };
  return {at("avg"), at("p50"), at("p90"), at("p95"), at("p99")};
}

BenchRun aiperf_run(const Field& run) {
  BenchRun out{.place = run.place(), .tool = "AIPerf", .states_load = false};
  if (const auto config = run.find("input_config")) {
    if (const auto load = config->find("loadgen")) {
      out.states_load = load->has("request_rate") || load->has("concurrency");
      out.rate = limit(*load, "request_rate");
      out.users = whole(limit(*load, "concurrency"));
    }
  }
  const auto avg = [&](std::string_view name) -> std::optional<double> {
    const auto block = run.find(name);
    return block ? count(*block, "avg") : std::nullopt;
  };
  if (const auto block = run.find("benchmark_duration")) {
    check_seconds(*block, "avg", unit_of(*block));
  }
  out.requests = whole(avg("request_count"));
  out.failed = whole(avg("error_request_count"));
  out.input_tokens = avg("input_sequence_length");
  out.output_tokens = avg("output_sequence_length");
  out.ttft = aiperf_times(run, "time_to_first_token");
  out.tpot = aiperf_times(run, "inter_token_latency");
  out.e2e = aiperf_times(run, "request_latency");
  out.request_s = avg("request_throughput");
  out.output_tok_s = avg("output_token_throughput");
  return out;
}

bool is_record(const Field& line) {
  return line.is_object() && line.has("metadata") && line.has("metrics") && !line.has("benchmarks");
}

BenchTimes summed(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  double sum = 0;
  for (const double value : values) sum += value;
  const auto at = [&](double share) {
    const auto rank =
        static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
    return values[std::max<std::size_t>(rank, 1) - 1];
  };
  return {sum / static_cast<double>(values.size()), at(0.5), at(0.9), at(0.95), at(0.99)};
}

BenchRun aiperf_records(const std::vector<Field>& records, const std::string& file) {
  BenchRun out{.place = file, .tool = "AIPerf", .states_load = false};
  std::vector<double> ttft, tpot, e2e;
  double inputs = 0, outputs = 0, first = 0, last = 0;
  std::int64_t done = 0, failed = 0;
  for (const Field& record : records) {
    const Field metadata = object_at(record, "metadata");
    const auto phase = metadata.find("benchmark_phase");
    if (phase && phase->string() != "profiling") continue;
    if (record.has("error")) {
      ++failed;
      continue;
    }
    const Field metrics = object_at(record, "metrics");
    const auto put = [&](std::vector<double>& into, std::string_view name) {
      if (const auto metric = metrics.find(name)) {
        into.push_back(*seconds(*metric, "value", unit_of(*metric)));
      }
    };
    const auto tokens = [&](std::string_view name) {
      const auto metric = metrics.find(name);
      return metric ? metric->at("value").number(0, kMaxCount) : 0;
    };
    put(ttft, "time_to_first_token");
    put(tpot, "inter_token_latency");
    put(e2e, "request_latency");
    inputs += tokens("input_sequence_length");
    outputs += tokens("output_sequence_length");
    constexpr double kMaxNs = 1e19;
    const double start = metadata.at("request_start_ns").number(0, kMaxNs) * 1e-9;
    const Field ended = metadata.at("request_end_ns");
    const double end = ended.number(0, kMaxNs) * 1e-9;
    if (end < start || end - start > kLongest) {
      ended.expected(fmt::format("a time 0 to {:g} s after request_start_ns", kLongest));
    }
    first = done == 0 ? start : std::min(first, start);
    last = std::max(last, end);
    ++done;
  }
  const auto n = static_cast<double>(done);
  out.requests = done;
  out.failed = failed;
  if (inputs > 0) out.input_tokens = inputs / n;
  if (outputs > 0) out.output_tokens = outputs / n;
  out.ttft = summed(std::move(ttft));
  out.tpot = summed(std::move(tpot));
  out.e2e = summed(std::move(e2e));
  if (last > first) {
    out.request_s = n / (last - first);
    if (outputs > 0) out.output_tok_s = outputs / (last - first);
  }
  return out;
}

// GuideLLM: a report of several strategies, each metric in four summaries.

BenchTimes guidellm_times(const Field& metrics, std::string_view name, double unit) {
  const auto metric = metrics.find(name);
  const auto done = metric ? metric->find("successful") : std::nullopt;
  if (!done) return {};
  const auto at = [&](std::string_view key) { return seconds(*done, key, unit); };
  BenchTimes out{.mean = at("mean"), .median = at("median")};
  if (const auto percentiles = done->find("percentiles")) {
    out.p90 = seconds(*percentiles, "p90", unit);
    out.p95 = seconds(*percentiles, "p95", unit);
    out.p99 = seconds(*percentiles, "p99", unit);
  }
  return out;
}

double rate_of(const Field& field) {
  constexpr double kMinRate = 1e-6, kMaxRate = 1e6;  // per second, as in scenarios
  return field.number(kMinRate, kMaxRate);
}

BenchRun guidellm_run(const Field& run) {
  BenchRun out{.place = run.place(), .tool = "GuideLLM"};
  check_seconds(run, "duration");
  const Field config = object_at(run, run.has("config") ? "config" : "args");
  const Field strategy = object_at(config, "strategy");
  const std::string kind = strategy.at("type_").string();
  if (kind == "constant" || kind == "poisson" || kind == "async") {
    out.rate = rate_of(strategy.at("rate"));
    if (kind == "constant") out.gap_cv = 0;
  } else if (kind == "concurrent") {
    out.users = strategy.at("streams").integer(1, 1'000'000);
  } else if (kind == "synchronous") {
    out.users = 1;
  } else if (kind != "throughput") {
    strategy.at("type_").expected(
        "\"constant\", \"poisson\", \"async\", \"concurrent\", \"synchronous\" or \"throughput\"");
  } else if (const auto max = limit(strategy, "max_concurrency")) {
    out.users = whole(max);
  }
  const Field metrics = object_at(run, "metrics");
  const auto mean = [&](std::string_view name) -> std::optional<double> {
    const auto metric = metrics.find(name);
    const auto done = metric ? metric->find("successful") : std::nullopt;
    return done ? count(*done, "mean") : std::nullopt;
  };
  if (const auto totals = metrics.find("request_totals")) {
    out.requests = whole(count(*totals, "successful"));
    out.failed = whole(count(*totals, "errored"));
  }
  out.input_tokens = mean("prompt_token_count");
  out.output_tokens = mean("output_token_count");
  out.ttft = guidellm_times(metrics, "time_to_first_token_ms", kMilli);
  out.tpot = guidellm_times(metrics, "inter_token_latency_ms", kMilli);
  out.e2e = guidellm_times(metrics, "request_latency", 1);
  out.request_s = mean("requests_per_second");
  out.output_tok_s = mean("output_tokens_per_second");
  return out;
}

// inference-perf: one file per stage.

BenchTimes stage_times(const Field& latency, std::string_view name) {
  const auto times = latency.find(name);
  if (!times) return {};
  const auto at = [&](std::string_view key) { return seconds(*times, key, 1); };
  return {at("mean"), at("median"), at("p90"), at("p95"), at("p99")};
}

BenchRun stage_run(const Field& run) {
  BenchRun out{.place = run.place(), .tool = "inference-perf"};
  const Field load = object_at(run, "load_summary");
  check_seconds(load, "send_duration");
  out.rate = limit(load, "requested_rate");
  out.users = whole(limit(load, "concurrency"));
  out.states_load = out.rate || out.users;
  const Field done = object_at(run, "successes");
  out.requests = whole(count(done, "count"));
  if (const auto failures = run.find("failures"); failures && failures->is_object()) {
    out.failed = whole(count(*failures, "count"));
  }
  const Field latency = object_at(done, "latency");
  out.ttft = stage_times(latency, "time_to_first_token");
  out.tpot = stage_times(latency, "time_per_output_token");
  if (!out.tpot.mean) out.tpot = stage_times(latency, "inter_token_latency");
  out.e2e = stage_times(latency, "request_latency");
  const auto mean = [&](std::string_view key) -> std::optional<double> {
    const auto lengths = done.find(key);
    return lengths && lengths->is_object() ? count(*lengths, "mean") : std::nullopt;
  };
  out.input_tokens = mean("prompt_len");
  out.output_tokens = mean("output_len");
  if (const auto rates = done.find("throughput")) {
    out.request_s = count(*rates, "requests_per_sec");
    out.output_tok_s = count(*rates, "output_tokens_per_sec");
  }
  return out;
}

bool has_any(const BenchTimes& times) { return times.mean || times.median; }
bool is_above_zero(const BenchTimes& times) {
  return times.mean.value_or(0) > 0 || times.median.value_or(0) > 0;
}

void put(std::vector<BenchRun>& out, BenchRun run) {
  if (!has_any(run.ttft) && !has_any(run.tpot) && !has_any(run.e2e)) {
    throw InputError{run.place, fmt::format("a mean or median TTFT, TPOT or E2E of {}", run.tool),
                     "none: was the benchmark run without streaming, or did every request fail?"};
  }
  if (run.requests && *run.requests <= 0) {
    throw InputError{run.place, "at least one completed request",
                     run.failed.value_or(0) > 0
                         ? fmt::format("0 completed and {} failed", *run.failed)
                         : "0 completed"};
  }
  if (!is_above_zero(run.ttft) && !is_above_zero(run.tpot) && !is_above_zero(run.e2e)) {
    throw InputError{run.place,
                     fmt::format("a mean or median TTFT, TPOT or E2E of {} above 0", run.tool),
                     "only zeros: did every request fail?"};
  }
  out.push_back(std::move(run));
}

void put_document(std::vector<BenchRun>& out, const Field& document) {
  if (document.is_array()) {
    for (const Field& item : document.items()) put_document(out, item);
    return;
  }
  if (!document.is_object()) document.expected(kTools);
  if (document.has("benchmarks")) {
    for (const Field& run : document.at("benchmarks").items()) put(out, guidellm_run(run));
  } else if (document.has("load_summary")) {
    put(out, stage_run(document));
  } else if (is_aiperf(document)) {
    put(out, aiperf_run(document));
  } else if (is_flat(document)) {
    put(out, flat_run(document));
  } else {
    document.fail(fmt::format("expected {}, got an object with none of their keys", kTools));
  }
}

/// Returns the objects of non-empty lines, each with its line number.
std::vector<Field> lines_of(std::string_view text, const std::string& file) {
  std::vector<Field> out;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    out.push_back(Field::parse(line, fmt::format("{}:{}", file, number)));
  }
  return out;
}

/// Whether a line ends one whole object and another begins on the next.
bool is_lines(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos || text[begin] != '{') return false;
  const std::size_t end = std::min(text.find('\n', begin), text.size());
  const std::size_t last = text.find_last_not_of(" \t\r", end - 1);
  return end < text.size() && text[last] == '}' && text.find('{', end) != std::string_view::npos;
}

}  // namespace

std::vector<BenchRun> parse_bench(std::string_view raw, const std::string& file) {
  if (raw.starts_with("\xEF\xBB\xBF")) raw.remove_prefix(3);  // a byte order mark
  const std::string text = without_python_numbers(std::string{raw});
  std::vector<BenchRun> out;
  const std::vector<Field> parts =
      is_lines(text) ? lines_of(text, file) : std::vector<Field>{Field::parse(text, file)};
  if (is_record(parts.front())) {
    put(out, aiperf_records(parts, file));
  } else {
    for (const Field& part : parts) put_document(out, part);
  }
  if (out.empty()) throw InputError{file, kTools, "a file without a run"};
  return out;
}

std::optional<std::string> failed_note(const BenchRun& run) {
  if (run.failed.value_or(0) <= 0) return std::nullopt;
  if (!run.requests) {
    return fmt::format("{}: {} requests failed; the times are those of the others", run.place,
                       *run.failed);
  }
  return fmt::format("{}: {} of {} requests failed; the times are those of the {} that completed",
                     run.place, *run.failed, *run.failed + *run.requests, *run.requests);
}

}  // namespace kvsim
