// Benchmarks of a service: `kvsim compare RESULT BENCH`, the same in the explorer, and
// `kvsim calibrate --from-bench`.

#include <cmath>
#include <filesystem>
#include <string>

#include <nlohmann/json.hpp>

#include "models/units/error.hpp"
#include "sim/explorer/explore.hpp"
#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::text_of;
using test::write;

constexpr const char* kService = R"({"kind": "serve", "model": "llama-3.1-8b",
  "gpu": "H100-80GB-SXM", "stack": "vllm", "slo": {"ttft": "1 s"}, "figures": false,
  "requests": {"arrivals": {"kind": "poisson", "rate": 1}, "count": 40, "prompt_tokens": 500,
               "output_tokens": 50}})";

std::string bench(double rate, double ttft_ms, double tpot_ms) {
  return json{{"request_rate", rate},        {"max_concurrency", nullptr},
              {"duration", 40 / rate},       {"completed", 40},
              {"total_input_tokens", 20000}, {"total_output_tokens", 2000},
              {"median_ttft_ms", ttft_ms},   {"mean_tpot_ms", tpot_ms}}
      .dump();
}

/// The same run with failed requests. Without a completed request, every metric is 0.
std::string bench_of_counts(double rate, int completed, int failed) {
  json out = json::parse(completed > 0 ? bench(rate, 40, 7) : bench(rate, 0, 0));
  out["completed"] = completed;
  out["failed"] = failed;
  out["total_input_tokens"] = 500 * completed;
  out["total_output_tokens"] = 50 * completed;
  return out.dump();
}

json document_of(const Outcome& outcome) {
  REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
  return json::parse(outcome.out);
}

TEST_CASE("compare RESULT BENCH: measured values next to the point of their load") {
  const fs::path folder = fresh("compare_bench");
  json scenario = json::parse(kService);
  scenario["requests"]["arrivals"]["rate"] = {1, 4};
  write(folder / "s.json", scenario.dump());
  const json points =
      document_of(run_kvsim({"run", "s.json", "--json", "-q", "-o", "r"}, folder)).at("points");
  const double tpot = points[1].at("tpot_s").at("mean").get<double>();
  write(folder / "b.json", bench(4, 40, 1e3 * tpot / 1.25));
  const json out = document_of(run_kvsim({"compare", "r", "b.json", "--json"}, folder));
  CHECK(out.at("schema") == "kvsim.compare-bench/1");
  REQUIRE(out.at("runs").size() == 1);
  CHECK(out.at("runs")[0].at("point") == points[1].at("label"));
  CHECK(out.at("runs")[0].at("notes").empty());
  int times = 0;
  for (const json& value : out.at("runs")[0].at("values")) {
    if (value.at("metric") != "tpot_s") continue;
    ++times;
    CHECK(value.at("error").get<double>() == test::rel(0.25, 1e-6));
    CHECK(value.at("low") == points[1].at("tpot_s_low").at("mean"));
    CHECK(value.at("high") == points[1].at("tpot_s_high").at("mean"));
  }
  CHECK(times == 1);
  CHECK(has(run_kvsim({"compare", "r", "b.json"}, folder).out, "+25.0"));
  // Load points without a matching point are listed; if none has one, it is an error.
  write(folder / "both.json", bench(4, 40, 7) + "\n" + bench(9, 40, 7) + "\n");
  const Outcome both = run_kvsim({"compare", "r", "both.json"}, folder);
  CHECK(both.status == 0);
  CHECK_MESSAGE(has(both.out, "the result has no point at 9 req/s"), both.out);
  write(folder / "other.json", bench(9, 40, 7));
  const Outcome other = run_kvsim({"compare", "r", "other.json"}, folder);
  CHECK(other.status == 2);
  CHECK(has(other.err, "expected a point at a load of the benchmark, got none at 9 req/s"));
  write(folder / "static.json",
        R"({"model": "llama-2-7b", "gpu": "H100-80GB-SXM", "stack": "vllm", "figures": false,
            "prompt_tokens": 100, "output_tokens": 10})");
  REQUIRE(run_kvsim({"run", "static.json", "-q", "-o", "st"}, folder).status == 0);
  const Outcome wrong = run_kvsim({"compare", "st", "b.json"}, folder);
  CHECK(wrong.status == 2);
  CHECK(has(wrong.err, "expected the result of a service, which a benchmark measures"));
  // The file at fault is named, regardless of the first result.
  write(folder / "no.json", "{}");
  write(folder / "text.json", "no JSON");
  for (const std::string first : {"r", "st"}) {
    for (const std::string second : {"no.json", "text.json"}) {
      const Outcome outcome = run_kvsim({"compare", first, second}, folder);
      CHECK(outcome.status == 2);
      CHECK_MESSAGE(outcome.err.starts_with("kvsim: " + second), outcome.err);
      CHECK_FALSE(has(outcome.err, "result.json"));
    }
  }
  write(folder / "b0.json", bench_of_counts(4, 0, 100));
  const Outcome failed = run_kvsim({"compare", "r", "b0.json"}, folder);
  CHECK(failed.status == 2);
  CHECK_MESSAGE(
      has(failed.err, "b0.json: expected at least one completed request, got 0 completed"),
      failed.err);
  write(folder / "b3.json", bench_of_counts(4, 3, 97));
  const Outcome partly = run_kvsim({"compare", "r", "b3.json"}, folder);
  CHECK(partly.status == 0);
  CHECK_MESSAGE(has(partly.out, "b3.json: 97 of 100 requests failed"), partly.out);
}

/// The query of explore_compare.
std::string pair_of(const std::string& result, const std::string& measured) {
  return json{{"result", result}, {"bench", measured}}.dump();
}

std::string refusal_of(const std::string& question) {
  try {
    (void)explore_compare(question);
  } catch (const InputError& error) {
    return error.what();
  }
  return "none";
}

TEST_CASE("explorer: a benchmark compared with a prediction gives the document of kvsim compare") {
  const fs::path folder = fresh("explorer_compare");
  json scenario = json::parse(kService);
  scenario["requests"]["arrivals"]["rate"] = {1, 4};
  write(folder / "s.json", scenario.dump());
  REQUIRE(run_kvsim({"run", "s.json", "-q", "-o", "r"}, folder).status == 0);
  const std::string result = text_of(folder / "r/result.json");
  write(folder / "static.json",
        R"({"model": "llama-2-7b", "gpu": "H100-80GB-SXM", "stack": "vllm", "figures": false,
            "prompt_tokens": 100, "output_tokens": 10})");
  REQUIRE(run_kvsim({"run", "static.json", "-q", "-o", "st"}, folder).status == 0);
  // With these file names, the command line's messages contain the explorer's places.
  const auto command_line = [&](const std::string& predicted, const std::string& measured) {
    write(folder / "result", predicted);
    write(folder / "benchmark", measured);
    return run_kvsim({"compare", "result", "benchmark", "--json"}, folder);
  };
  const std::string lines = bench(4, 40, 7) + "\n" + bench(1, 30, 6) + "\n";
  for (const std::string& measured :
       {bench(4, 40, 7), lines, lines + bench(9, 40, 7) + "\n", bench_of_counts(4, 3, 97)}) {
    const ordered_json document = explore_compare(pair_of(result, measured));
    const Outcome outcome = command_line(result, measured);
    REQUIRE_MESSAGE(outcome.status == 0, outcome.err);
    CHECK(document == ordered_json::parse(outcome.out));
    CHECK(document.at("schema") == "kvsim.compare-bench/1");
    CHECK(document.at("runs")[0].at("values").size() == 2);
  }
  CHECK(explore_compare(pair_of(result, lines)).at("runs").size() == 2);

  struct Wrong {
    std::string predicted, measured, says;
  };
  for (const Wrong& wrong :
       {Wrong{text_of(folder / "st/result.json"), bench(4, 40, 7),
              "result: expected the result of a service, which a benchmark measures"},
        Wrong{"{", bench(4, 40, 7), "result: "}, Wrong{"{}", bench(4, 40, 7), "result: "},
        Wrong{result, "no JSON", "benchmark: "},
        Wrong{result, "{}", "benchmark: expected a result of vllm bench serve"},
        Wrong{result, bench_of_counts(4, 0, 100),
              "benchmark: expected at least one completed request, got 0 completed"},
        Wrong{result, bench(9, 40, 7),
              "result: expected a point at a load of the benchmark, got none at 9 req/s"}}) {
    const std::string said = refusal_of(pair_of(wrong.predicted, wrong.measured));
    CHECK_MESSAGE(said.starts_with(wrong.says), said);
    const Outcome outcome = command_line(wrong.predicted, wrong.measured);
    CHECK(outcome.status == 2);
    CHECK(has(outcome.err, said));
  }
  CHECK(has(refusal_of(pair_of(result, result)), "benchmark: expected"));
  CHECK(has(refusal_of(R"({"result": "{}"})"), "question: "));
  CHECK(has(refusal_of(R"({"result": "{}", "bench": 1})"), "question: /bench"));
}

TEST_CASE("calibrate --from-bench: errors and widths shrink, and a scenario takes the file") {
  const fs::path folder = fresh("calibrate_bench");
  write(folder / "s.json", kService);
  // As predicted, but decoding is 10 % slower and the first token takes 20 ms longer.
  const json before =
      document_of(run_kvsim({"run", "s.json", "--json", "-q", "-o", "r"}, folder)).at("points")[0];
  const double tpot = 1.1e3 * before.at("tpot_s").at("mean").get<double>();
  const double ttft = 20 + 1e3 * before.at("ttft_s").at("p50").get<double>();
  write(folder / "one.json", bench(1, ttft, tpot));
  write(folder / "two.json", bench(4, 1.05 * ttft, 1.05 * tpot));
  const json out = document_of(run_kvsim(
      {"calibrate", "--from-bench", "one.json", "two.json", "s.json", "-o", "m.json", "--json"},
      folder));
  CHECK(out.at("schema") == "kvsim.calibrate-bench/1");
  REQUIRE(out.at("runs").size() == 2);
  CHECK(out.at("runs")[1].at("load") == "4 req/s");
  for (const json& run : out.at("runs")) {
    CHECK(run.at("tool") == "vllm bench serve");
    for (const json& value : run.at("values")) {
      const double measured = value.at("measured").get<double>();
      const auto side = [&](const char* name) { return value.at(name); };
      const auto error = [&](const char* name) {
        return std::abs(side(name).at("predicted").get<double>() / measured - 1);
      };
      const auto width = [&](const char* name) {
        return side(name).at("high").get<double>() / side(name).at("low").get<double>();
      };
      CHECK(error("after") < error("before"));
      CHECK(width("after") < width("before"));
    }
  }
  CHECK(json::parse(text_of(folder / "m.json")) == out.at("overrides"));
  std::string extended = kService;
  extended.insert(1, R"("extends": "m.json", )");
  write(folder / "e.json", extended);
  const json after =
      document_of(run_kvsim({"run", "e.json", "--json", "-q", "-o", "r2"}, folder)).at("points")[0];
  CHECK(after.at("tpot_s").at("mean").get<double>() > before.at("tpot_s").at("mean").get<double>());
  CHECK(has(after.at("intervals").at("basis").get<std::string>(), "benchmark of this service"));
  CHECK(after.at("intervals").at("slo_probability").get<double>() > 0.9);
}

TEST_CASE(
    "calibrate --from-bench: the load is the file's, and missing metrics are not calibrated") {
  const fs::path folder = fresh("calibrate_bench_load");
  json scaled = json::parse(kService);
  scaled["requests"]["rate_scale"] = 2;
  write(folder / "scaled.json", scaled.dump());
  write(folder / "plain.json", kService);
  write(folder / "b.json", bench(4, 40, 7));
  const auto fitted = [&](const std::string& file, const std::string& scenario) {
    return document_of(run_kvsim({"calibrate", "--from-bench", file, scenario, "--json"}, folder));
  };
  const json plain = fitted("b.json", "plain.json");
  CHECK(fitted("b.json", "scaled.json").at("runs") == plain.at("runs"));
  // A limit that delays requests makes a closed loop; a limit without effect is omitted.
  json both = json::parse(bench(4, 40, 7));
  both["max_concurrency"] = 8;
  both["request_throughput"] = 3.9;
  write(folder / "kept.json", both.dump());
  const json kept = fitted("kept.json", "plain.json");
  CHECK(kept.at("runs")[0].at("load") == "4 req/s");
  CHECK(has(kept.at("notes").dump(), "simulated without the limit"));
  both["request_throughput"] = 2.0;
  write(folder / "held.json", both.dump());
  const json held = fitted("held.json", "plain.json");
  CHECK(held.at("runs")[0].at("load") == "8 users");
  CHECK(has(held.at("notes").dump(), "simulated as 8 users"));
  // Requests from a file.
  write(folder / "r.csv", "arrived_at,num_prefill_tokens,num_decode_tokens\n0,500,50\n1,500,50\n");
  json file = json::parse(kService);
  file["requests"] = {{"file", "r.csv"}};
  write(folder / "file.json", file.dump());
  CHECK(fitted("b.json", "file.json").at("runs").size() == 1);
  // E2E without TTFT does not determine TTFT: its interval is unchanged.
  write(folder / "e2e.json", R"({"request_rate": 4, "duration": 10, "completed": 40,
      "mean_e2el_ms": 400})");
  const json of_e2e = fitted("e2e.json", "plain.json").at("overrides").at("bench");
  const json of_all = plain.at("overrides").at("bench");
  CHECK(of_e2e.at("ttft_error").get<double>() > 1.5 * of_all.at("ttft_error").get<double>());
  CHECK(of_e2e.at("tpot_error").get<double>() > 1.5 * of_all.at("tpot_error").get<double>());
  const auto refused = [&](const test::Words& words) {
    const Outcome outcome = run_kvsim(words, folder);
    CHECK(outcome.status == 2);
    return outcome.err;
  };
  write(folder / "median.json", R"({"request_rate": 4, "duration": 10, "completed": 40,
      "median_e2el_ms": 400})");
  CHECK(has(refused({"calibrate", "--from-bench", "median.json", "plain.json"}),
            "median.json: expected a mean or median TTFT or TPOT, a mean E2E"));
  json talks = json::parse(kService);
  talks["requests"]["sessions"] = {{"turns", 3}};
  write(folder / "talks.json", talks.dump());
  CHECK(has(refused({"calibrate", "--from-bench", "b.json", "talks.json"}), "/requests/sessions"));
  CHECK(has(refused({"calibrate", "--from-bench", "b.json", "plain.json", "-o", "plain.json"}),
            "expected a file other than the scenario"));
  CHECK(text_of(folder / "plain.json") == kService);
  CHECK(has(refused({"calibrate", "--from-bench", "b.json", "plain.json", "--op", "gemm"}),
            "--op: expected together with --measured"));
}

TEST_CASE("calibrate --from-bench: wrong files and scenarios are refused by place") {
  const fs::path folder = fresh("calibrate_bench_wrong");
  write(folder / "s.json", kService);
  write(folder / "b.json", bench(1, 50, 10));
  const auto complaint = [&](const std::string& file, const std::string& scenario) {
    const Outcome outcome = run_kvsim({"calibrate", "--from-bench", file, scenario, "-q"}, folder);
    CHECK(outcome.status == 2);
    return outcome.err;
  };
  write(folder / "bad.json", R"({"duration": 1, "completed": "all"})");
  CHECK(has(complaint("bad.json", "s.json"), "bad.json: /completed"));
  write(folder / "other.json", R"({"a": 1})");
  CHECK(has(complaint("other.json", "s.json"), "vllm bench serve"));
  write(folder / "b0.json", bench_of_counts(1, 0, 100));
  CHECK(has(complaint("b0.json", "s.json"),
            "b0.json: expected at least one completed request, got 0 completed"));
  CHECK(has(complaint("missing.json", "s.json"), "missing.json"));
  write(folder / "static.json",
        R"({"model": "llama-3.1-8b", "gpu": "H100-80GB-SXM", "prompt_tokens": 9,
            "output_tokens": 1})");
  CHECK(complaint("b.json", "static.json").size() > 0);
  write(folder / "ideal.json", [] {
    std::string text = kService;
    return text.replace(text.find("\"vllm\""), 6, "\"ideal\"");
  }());
  CHECK(has(complaint("b.json", "ideal.json"), "intervals"));
  write(folder / "b3.json", bench_of_counts(1, 3, 97));
  const Outcome partly =
      run_kvsim({"calibrate", "--from-bench", "b3.json", "s.json", "-q"}, folder);
  CHECK(partly.status == 0);
  CHECK_MESSAGE(has(partly.err,
                    "b3.json: 97 of 100 requests failed; the times are those of the 3 "
                    "that completed"),
                partly.err);
  const Outcome none = run_kvsim({"calibrate", "--from-bench", "b.json"}, folder);
  CHECK(none.status == 2);
  CHECK(has(none.err, "SCENARIO"));
}

}  // namespace
}  // namespace kvsim
