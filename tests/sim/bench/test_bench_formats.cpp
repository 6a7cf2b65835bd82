// Results of benchmark clients: the content of each tool's file, and the refusal of invalid files.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/units/error.hpp"
#include "sim/bench/bench_run.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kVllm = R"({"date": "20261101-120000", "backend": "openai",
  "num_prompts": 2, "request_rate": "inf", "max_concurrency": 8, "duration": 2.5, "completed": 2,
  "total_input_tokens": 300, "total_output_tokens": 6, "request_throughput": 0.8,
  "output_throughput": 2.4, "mean_ttft_ms": 41.5, "median_ttft_ms": 41.0, "p99_ttft_ms": 41.98,
  "mean_tpot_ms": 9.0, "p99_tpot_ms": 9.1, "ttfts": [0.04, 0.042], "errors": ["", ""]})";

constexpr std::string_view kSglang =
    R"({"tag": null, "backend": "sglang", "dataset_name": "random", "request_rate": Infinity,)"
    R"( "max_concurrency": 16, "duration": 30.1, "completed": 120, "total_input_tokens": 61000,)"
    R"( "total_output_tokens": 7700, "output_throughput": 255.8, "mean_ttft_ms": 55.0,)"
    R"( "mean_tpot_ms": 8.8, "mean_e2e_latency_ms": 500})";

constexpr std::string_view kAiperf = R"({"schema_version": "1.5", "aiperf_version": "0.3",
  "input_config": {"loadgen": {"concurrency": 4, "request_count": 20}},
  "time_to_first_token": {"unit": "ms", "avg": 61.0, "p50": 60.5, "p99": 79.2},
  "inter_token_latency": {"unit": "us", "avg": 9500},
  "output_token_throughput": {"unit": "tokens/sec", "avg": 400}, "request_count": {"avg": 20}})";

std::string record(double start_s, double ttft_ms, const std::string& phase = "profiling",
                   const std::string& error = "null") {
  const auto ns = [](double s) { return std::to_string(static_cast<long long>(s * 1e9)); };
  return R"({"metadata": {"request_start_ns": )" + ns(start_s) + R"(, "request_end_ns": )" +
         ns(start_s + 1) + R"(, "benchmark_phase": ")" + phase +
         R"("}, "metrics": {"time_to_first_token": {"value": )" + std::to_string(ttft_ms) +
         R"(, "unit": "ms"}, "output_sequence_length": {"value": 100, "unit": "tokens"}}, )" +
         R"("error": )" + error + "}\n";
}

constexpr std::string_view kGuidellm = R"({"metadata": {"version": 2}, "benchmarks": [
  {"config": {"strategy": {"type_": "constant", "rate": 2.0}}, "metrics": {
    "request_totals": {"successful": 60, "errored": 0},
    "time_to_first_token_ms": {"successful": {"mean": 48, "median": 47, "percentiles": {"p95": 58}}},
    "inter_token_latency_ms": {"successful": {"mean": 8}},
    "request_latency": {"successful": {"mean": 1.5}},
    "output_tokens_per_second": {"successful": {"mean": 350}}}},
  {"config": {"strategy": {"type_": "concurrent", "streams": 16}}, "metrics": {
    "time_to_first_token_ms": {"successful": {"mean": 90, "median": 80}}}}]})";

constexpr std::string_view kInferencePerf = R"({
  "load_summary": {"count": 60, "requested_rate": 1.0, "achieved_rate": 1.003},
  "successes": {"count": 60, "latency": {
    "request_latency": {"mean": 0.48, "median": 0.47}, "time_per_output_token": {"mean": 0.007},
    "time_to_first_token": {"mean": 0.033, "p99": 0.042}},
    "throughput": {"output_tokens_per_sec": 61.5, "requests_per_sec": 1.0},
    "prompt_len": {"mean": 512}}, "failures": {"count": 0}})";

std::vector<BenchRun> parse(std::string_view text) { return parse_bench(text, "b.json"); }

TEST_CASE("a result of vllm bench serve") {
  const BenchRun run = parse(kVllm).at(0);
  CHECK(run.tool == "vllm bench serve");
  CHECK_FALSE(run.rate);
  CHECK(run.users == 8);
  CHECK(run.requests == 2);
  CHECK(*run.input_tokens == 150);
  CHECK(*run.output_tokens == 3);
  CHECK(*run.ttft.median == test::rel(0.041));
  CHECK(*run.ttft.p99 == test::rel(0.04198));
  CHECK(*run.tpot.mean == test::rel(0.009));
  CHECK_FALSE(run.e2e.mean);
  CHECK(*run.output_tok_s == 2.4);
}

TEST_CASE("appended runs are one per line") {
  std::string one{kVllm};
  for (char& c : one) c = c == '\n' ? ' ' : c;
  const auto runs = parse(one + "\n\n" + std::string{kSglang} + "\n");
  REQUIRE(runs.size() == 2);
  CHECK(runs[1].tool == "SGLang bench_serving");
  CHECK(runs[1].users == 16);
  CHECK_FALSE(runs[1].rate);  // Infinity
  CHECK(*runs[1].e2e.mean == test::rel(0.5));
  CHECK(runs[1].place.find("b.json:3") != std::string::npos);
}

TEST_CASE("a summary of AIPerf has a unit for each metric") {
  const BenchRun run = parse(kAiperf).at(0);
  CHECK(run.tool == "AIPerf");
  CHECK(run.states_load);
  CHECK(run.users == 4);
  CHECK(*run.ttft.median == test::rel(0.0605));
  CHECK(*run.tpot.mean == test::rel(0.0095));
  CHECK(*run.output_tok_s == 400);
}

TEST_CASE("records of AIPerf are summed up without warm-up and errors") {
  const BenchRun run = parse(record(10, 50) + record(11, 70) + record(12, 900, "warmup") +
                             record(13, 900, "profiling", R"({"code": 500})"))
                           .at(0);
  CHECK_FALSE(run.states_load);
  CHECK(run.requests == 2);
  CHECK(*run.ttft.mean == test::rel(0.06));
  CHECK(*run.ttft.median == test::rel(0.05));
  CHECK(*run.output_tokens == 100);
  CHECK(*run.request_s == test::rel(1.0));  // 2 requests in 2 s
}

TEST_CASE("a report of GuideLLM has a run for each strategy") {
  const auto runs = parse(kGuidellm);
  REQUIRE(runs.size() == 2);
  CHECK(*runs[0].rate == 2);
  CHECK(runs[0].requests == 60);
  CHECK(*runs[0].ttft.p95 == test::rel(0.058));
  CHECK(*runs[0].tpot.mean == test::rel(0.008));
  CHECK(*runs[0].e2e.mean == test::rel(1.5));
  CHECK(runs[0].gap_cv == 0);  // "constant"
  CHECK(runs[1].users == 16);
  CHECK_FALSE(runs[1].rate);
}

TEST_CASE("arrivals of requests: gaps by burstiness, or from a trace") {
  const auto flat = [](std::string_view load) {
    return parse("{" + std::string{load} +
                 R"(, "duration": 30, "completed": 120, "mean_ttft_ms": 55})")
        .front();
  };
  CHECK(flat(R"("request_rate": 4)").gap_cv == 1);
  CHECK(flat(R"("request_rate": 4, "burstiness": 1.0)").gap_cv == 1);
  CHECK(flat(R"("request_rate": 4, "burstiness": 0.25)").gap_cv == test::rel(2.0));
  const BenchRun both = flat(R"("request_rate": 4, "max_concurrency": 8)");
  CHECK(*both.rate == 4);
  CHECK(both.users == 8);
  const BenchRun trace = flat(R"("request_rate": "trace", "max_concurrency": 8)");
  CHECK_FALSE(trace.states_load);
  CHECK_FALSE(trace.users);
  // A byte order mark, as written by some editors.
  CHECK(parse("\xEF\xBB\xBF" + std::string{kVllm}).size() == 1);
  for (const char* wrong : {R"("burstiness": 0)", R"("burstiness": "high")"}) {
    CHECK_THROWS_AS((void)flat(R"("request_rate": 4, )" + std::string{wrong}), InputError);
  }
}

TEST_CASE("failed requests of each tool are counted and noted") {
  const auto with = [](std::string_view of, std::string_view from, std::string_view to) {
    std::string text{of};
    const std::size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return parse(text.replace(at, from.size(), to)).at(0);
  };
  CHECK_FALSE(failed_note(parse(kVllm).at(0)));
  CHECK_FALSE(failed_note(parse(kSglang).at(0)));
  CHECK(failed_note(with(kVllm, "\"num_prompts\": 2", "\"num_prompts\": 5")) ==
        "b.json: 3 of 5 requests failed; the times are those of the 2 that completed");
  CHECK(with(kVllm, "\"num_prompts\": 2", "\"failed\": 4").failed == 4);
  CHECK(with(kAiperf, "\"request_count\": {\"avg\": 20}",
             "\"request_count\": {\"avg\": 20}, \"error_request_count\": {\"avg\": 6}")
            .failed == 6);
  CHECK(with(kGuidellm, "\"errored\": 0", "\"errored\": 5").failed == 5);
  CHECK(
      with(kInferencePerf, "\"failures\": {\"count\": 0}", "\"failures\": {\"count\": 8}").failed ==
      8);
  const auto records = parse(record(10, 50) + record(11, 900, "profiling", R"({"code": 500})") +
                             record(12, 900, "warmup", R"({"code": 500})"));
  CHECK(records.at(0).failed == 1);
}

TEST_CASE("a stage of inference-perf is in seconds") {
  const BenchRun run = parse(kInferencePerf).at(0);
  CHECK(run.tool == "inference-perf");
  CHECK(*run.rate == 1);
  CHECK(*run.ttft.mean == test::rel(0.033));
  CHECK(*run.tpot.mean == test::rel(0.007));
  CHECK(*run.e2e.median == test::rel(0.47));
  CHECK(*run.input_tokens == 512);
}

std::string complaint(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  text.replace(at, from.size(), to);
  try {
    (void)parse(text);
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}
bool says(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE("an invalid file is refused with its place, the expected and the actual value") {
  const auto with = [](std::string_view of, std::string_view from, std::string_view to) {
    return complaint(std::string{of}, from, to);
  };
  std::string text = with(kVllm, "41.5", "\"41.5\"");
  CHECK(says(text, "b.json"));
  CHECK(says(text, "/mean_ttft_ms"));
  CHECK(says(text, "expected"));
  CHECK(says(text, "got"));
  CHECK(says(with(kVllm, "\"inf\"", "\"fast\""), "/request_rate"));
  CHECK(says(with(kVllm, "41.5", "-41.5"), "/mean_ttft_ms"));
  CHECK(says(with(kVllm, "\"completed\"", "\"done\""), "vllm bench serve"));
  CHECK(says(with(kVllm, "\"errors\": [\"\", \"\"]}", ""), "b.json"));  // truncated
  CHECK(says(with(kSglang, "\"duration\": 30.1", "\"duration\": }"), "b.json"));
  CHECK(says(with(kAiperf, "\"us\"", "\"hours\""), "/inter_token_latency/unit"));
  CHECK(says(with(kGuidellm, "\"constant\"", "\"surge\""), "/benchmarks/0/config/strategy/type_"));
  CHECK(says(with(kGuidellm, "\"rate\": 2.0", "\"rates\": 2.0"), "rate"));
  CHECK(says(with(kInferencePerf, "\"successes\"", "\"passes\""), "successes"));
  CHECK(says(with(kInferencePerf, "0.033", "\"33 ms\""),
             "/successes/latency/time_to_first_token/mean"));
  CHECK(says(complaint("[]", "[]", "[]"), "without a run"));
  CHECK(says(complaint("7", "7", "7"), "expected"));
  // All requests failed, or the client did not stream.
  const std::string none = with(R"({"completed": 0, "duration": 1, "request_rate": 1})",
                                "\"request_rate\": 1", "\"request_rate\": 1");
  CHECK(says(none, "mean or median"));
  CHECK(says(with(kVllm, "\"completed\": 2", "\"completed\": 0"),
             "b.json: expected at least one completed request, got 0 completed"));
  CHECK(says(
      with(kGuidellm, "\"successful\": 60, \"errored\": 0", "\"successful\": 0, \"errored\": 7"),
      "/benchmarks/0: expected at least one completed request, got 0 completed and 7 failed"));
  CHECK(says(with(R"({"completed": 1, "duration": 1, "mean_ttft_ms": 0})", "\"mean_ttft_ms\"",
                  "\"median_ttft_ms\""),
             "got only zeros"));
  // The message contains the record's line.
  CHECK(says(complaint(record(1, 50) + record(2, 60), "\"value\": 60", "\"value\": \"slow\""),
             "b.json:2"));
}

TEST_CASE("an invalid duration is refused in each format") {
  struct Format {
    std::string_view text, from, key, place;
  };
  for (const Format& format : {
           Format{kVllm, R"("duration": 2.5)", R"("duration": )", "b.json: /duration"},
           Format{kSglang, R"("duration": 30.1)", R"("duration": )", "b.json: /duration"},
           Format{kAiperf, R"("request_count": {"avg": 20})",
                  R"("benchmark_duration": {"unit": "sec", "avg": )",
                  "b.json: /benchmark_duration/avg"},
           Format{kGuidellm, R"("metrics": {)", R"("duration": )",
                  "b.json: /benchmarks/0/duration"},
           Format{kInferencePerf, R"("count": 60, )", R"("send_duration": )",
                  "b.json: /load_summary/send_duration"},
       }) {
    const bool replaces = format.from.find("duration") != std::string_view::npos;
    const auto with = [&](std::string_view value) {
      std::string to = std::string{format.key} + std::string{value};
      if (format.key.find("avg") != std::string_view::npos) to += "}";
      if (!replaces) {
        // Inserted before another key of its object, or after it.
        const bool ends_object = format.from.ends_with('}');
        to = ends_object ? std::string{format.from} + ", " + to
                         : to + ", " + std::string{format.from};
      }
      return complaint(std::string{format.text}, format.from, to);
    };
    CAPTURE(format.place);
    CHECK(with("12.5").empty());
    for (const auto& [bad, got] :
         {std::pair{"-1", "got -1"}, {"1e300", "1e+300"}, {"\"x\"", "\"x\""}}) {
      const std::string text = with(bad);
      CAPTURE(text);
      CHECK(says(text, format.place));
      CHECK(says(text, "expected a number in [0, 10000000]"));
      CHECK(says(text, got));
    }
  }
  // Records have the times of each request.
  const std::string end = R"("request_end_ns": 3000000000)";
  for (const std::string bad : {"1000000000", "1e19"}) {
    const std::string text = complaint(record(2, 50), end, R"("request_end_ns": )" + bad);
    CHECK(says(text, "/metadata/request_end_ns: expected a time 0 to 1e+07 s after"));
  }
  CHECK(says(complaint(record(2, 50), end, R"("request_end_ns": "x")"), "request_end_ns"));
  CHECK(says(complaint(record(2, 50), end, R"("request_end_ns": -1)"), "request_end_ns"));
}

}  // namespace
}  // namespace kvsim
