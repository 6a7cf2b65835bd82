// `kvsim calibrate --from-log` with logs that contain the pool but not all of its terms.

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/sim/cli/program.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::fresh;
using test::has;
using test::Outcome;
using test::run_kvsim;
using test::text_of;
using test::write;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

/// A V1 log at level INFO. If `tokens` is 0, the line with the tokens is omitted.
std::string info_log(double weights, double pool, std::int64_t tokens) {
  std::string log = fmt::format(
      "INFO [gpu_model_runner.py:2653] Model loading took {:.2f} GiB and 3.1 seconds\n"
      "INFO [gpu_worker.py:298] Available KV cache memory: {:.2f} GiB\n"
      "INFO [gpu_model_runner.py:3480] Graph capturing finished in 21 secs, took 0.54 GiB\n",
      weights, pool);
  if (tokens > 0) log += fmt::format("INFO GPU KV cache size: {} tokens\n", tokens);
  return log;
}
// 410,432 tokens of 32 layers x 2 x 8 heads x 128 x 2 B = 131,072 B are 50.1016 GiB.
std::string h100_log() {
  return info_log(14.99, 50.10, 410432) +
         "INFO Maximum concurrency for 131,072 tokens per request: 3.13x\n";
}

std::string scenario(const std::string& more = "", const std::string& gpu = "H100-80GB-SXM",
                     const std::string& stack = "vllm@0.11") {
  return fmt::format(R"({{"model": "llama-3.1-8b", "gpu": "{}", "stack": "{}",
    "prompt_tokens": 1000, "output_tokens": 2, "figures": false{}}})",
                     gpu, stack, more);
}

struct CalibrateRun {
  json document;
  std::string err;
};

CalibrateRun calibrate(const fs::path& folder, const std::string& log,
                       const std::string& scenario_text) {
  write(folder / "v.log", log);
  write(folder / "v.json", scenario_text);
  const Outcome outcome =
      run_kvsim({"calibrate", "--from-log", "v.log", "v.json", "-o", "o.json", "--json"}, folder);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  return {json::parse(outcome.out), outcome.err};
}

/// Returns the message of a refusal that writes no file.
std::string refusal(const fs::path& folder, const std::string& log,
                    const std::string& scenario_text) {
  write(folder / "v.log", log);
  write(folder / "v.json", scenario_text);
  fs::remove(folder / "o.json");
  const Outcome outcome =
      run_kvsim({"calibrate", "--from-log", "v.log", "v.json", "-o", "o.json"}, folder);
  CHECK(outcome.status == 2);
  CHECK(outcome.out.empty());
  CHECK_FALSE(fs::exists(folder / "o.json"));
  return outcome.err;
}

double gib(const json& start, const char* key) { return start.at(key).get<double>() / kGiB; }
double apart(double a, double b) { return std::abs(a - b); }

TEST_CASE("calibrate: a log that states the pool without its terms predicts the same pool") {
  const fs::path folder = fresh("calibrate-pool");
  struct Row {
    std::string log, scenario;
    double pool;
    std::int64_t tokens;
  };
  const std::vector<Row> rows{
      {h100_log(), scenario(), 50.10, 410432},
      // Only the pool in tokens, as in V1 before 0.9: 410,432 x 131,072 B.
      {"INFO Model loading took 14.99 GiB\nINFO GPU KV cache size: 410,432 tokens\n", scenario(),
       50.1016, 410432},
      // The fraction among the arguments that V1 prints.
      {"INFO non-default args: {'model': 'm', 'gpu_memory_utilization': 0.95}\n" +
           info_log(14.99, 54.06, 442864),
       scenario(), 54.06, 442864},
      // Half of the weights and of the cache on each of two GPUs.
      {info_log(7.51, 56.90, 932256), scenario(R"(, "gpu_count": 2)"), 56.90, 932256},
  };
  for (const Row& row : rows) {
    INFO(row.log);
    const CalibrateRun result = calibrate(folder, row.log, row.scenario);
    CHECK(result.err.empty());
    CHECK(result.document.at("warnings").empty());
    const json& after = result.document.at("with_overrides");
    CHECK(apart(gib(after, "kv_cache_bytes"), row.pool) < 0.01);
    CHECK(after.at("tokens") == row.tokens);
    CHECK(result.document.at("predicted").at("tokens") != row.tokens);
    // The message and the file both state that the term is not a measurement.
    REQUIRE(result.document.at("notes").size() == 1);
    CHECK(has(result.document.at("notes").at(0), "activation peak: derived, not measured: "));
    CHECK(text_of(folder / "o.json").starts_with("// activation peak: derived, not measured: "));
    // A run with the overrides reproduces the start.
    write(folder / "w.json", R"({"extends": ["v.json", "o.json"]})");
    const Outcome run = run_kvsim({"run", "w.json", "--json", "-q", "-o", "r"}, folder);
    REQUIRE(run.status == 0);
    CHECK(json::parse(run.out).at("points").at(0).at("startup") == after);
  }
}

TEST_CASE("calibrate: the rest is assigned to the term that the log does not state") {
  const fs::path folder = fresh("calibrate-left");
  // With the activations in the log: 0.9 x 79.19 (from the scenario) - 14.99 - 4.74 - 51.00 is
  // non-torch.
  const std::string activation =
      "DEBUG model weights take 14.99GiB; PyTorch activation peak memory takes 4.74GiB; the rest "
      "of "
      "the memory reserved for KV Cache is 51.00GiB.\n";
  const CalibrateRun result = calibrate(folder, activation, scenario());
  const json& after = result.document.at("with_overrides");
  CHECK(apart(gib(after, "kv_cache_bytes"), 51.00) < 0.01);
  CHECK(apart(gib(after, "activation_bytes"), 4.74) < 1e-6);
  CHECK(apart(gib(after, "non_torch_bytes"),
              0.9 * gib(after, "total_bytes") - 14.99 - 4.74 - 51.00) < 1e-6);
  CHECK(has(result.document.at("notes").at(0), "non-torch: derived, not measured"));
  // With all terms except the GPU's size: (14.99 + 0.13 + 4.76 + 51.38) / 0.9 = 79.178.
  const std::string debug =
      "DEBUG Initial free memory: 78.60 GiB; Requested memory: 0.90 (util), 71.26 GiB\n"
      "DEBUG Total non KV cache memory: 19.88GiB; torch peak memory increase: 4.76GiB; non-torch "
      "forward increase memory: 0.13GiB; weights memory: 14.99GiB.\n"
      "INFO Available KV cache memory: 51.38 GiB\n";
  const CalibrateRun all = calibrate(folder, debug, scenario());
  CHECK(apart(gib(all.document.at("with_overrides"), "total_bytes"), 79.1778) < 1e-3);
  CHECK(apart(gib(all.document.at("with_overrides"), "kv_cache_bytes"), 51.38) < 1e-6);
  CHECK(all.document.at("warnings").empty());
  CHECK(has(refusal(folder, debug, scenario("", "H200-141GB-SXM")),
            "the memory of the GPU is 79.18 GiB"));
  // No term to derive: the terms are unchanged, and their difference from the log's pool is
  // reported.
  const std::string whole =
      "total_gpu_memory (79.19GiB) x gpu_memory_utilization (0.90) = 71.27GiB\n"
      "model weights take 14.99GiB; non_torch_memory takes 0.13GiB; PyTorch activation peak memory "
      "takes 4.74GiB; the rest of the memory reserved for KV Cache is 45.00GiB.\n";
  const CalibrateRun stated = calibrate(folder, whole, scenario());
  CHECK(stated.document.at("notes").empty());
  // 0.9 x 79.19 - 14.99 - 0.13 - 4.74 = 51.41
  CHECK(has(stated.err, "the KV cache is 51.41 GiB, the log's own is 45.00 GiB"));
}

TEST_CASE("calibrate: a log of another start than the scenario's is reported with numbers") {
  const fs::path folder = fresh("calibrate-mismatch");
  // 0.9 x 39.39 - 14.99 - 0.13 - 30.10 = -9.77
  const std::string smaller =
      refusal(folder, info_log(14.99, 30.10, 246576), scenario("", "A100-40GB-SXM"));
  CHECK(has(smaller, "v.log: expected a log of the scenario's start"));
  CHECK(has(smaller, "activation peak is -9.77 GiB = 0.9 (scenario) x 39.39 (scenario)"));
  CHECK(has(smaller, "v.json differs from the log's"));
  CHECK(has(refusal(folder, h100_log(), scenario("", "A100-40GB-SXM")),
            "a KV cache of 50.10 GiB in a GPU of 39.39 GiB"));
  // The pool of a smaller GPU implies a peak of 40 GiB, but 5 are predicted.
  CHECK(has(refusal(folder, info_log(14.99, 15.80, 0), scenario()), "activation peak is 40.3"));
  // A different fraction.
  CHECK(has(refusal(folder, h100_log(), scenario(R"(, "engine": {"memory_fraction": 0.7})")),
            "activation peak is -9.7"));
  const CalibrateRun fraction = calibrate(folder, info_log(14.99, 54.06, 442864), scenario());
  CHECK(has(fraction.err, "activation peak is 2.09 GiB by the log, predicted 4.74 GiB"));
  CHECK(has(text_of(folder / "o.json"), "is 2.09 GiB by the log"));
  // Tokens that imply a pool larger than the GPU.
  CHECK(has(refusal(folder, "GPU KV cache size: 4,104,320 tokens\n", scenario()), "501.02 GiB"));
  // The fraction of another engine implies other terms.
  CHECK(has(refusal(folder, h100_log(), scenario("", "H100-80GB-SXM", "sglang")),
            "v.json: /stack: expected a stack whose memory fraction is of all memory"));
}

TEST_CASE("calibrate: tokens and bytes of the pool must match the scenario's cache") {
  const fs::path folder = fresh("calibrate-tokens");
  const std::string fp8 = info_log(14.99, 50.10, 820864);
  CHECK(has(calibrate(folder, fp8, scenario()).err,
            "the log's 820,864 tokens of the scenario's 131072 B each are 100.20 GiB, its KV cache "
            "is 50.10 GiB: the scenario's model, kv_dtype or gpu_count differs from the log's"));
  const CalibrateRun fits = calibrate(folder, fp8, scenario(R"(, "kv_dtype": "fp8")"));
  CHECK(fits.err.empty());
  CHECK(fits.document.at("with_overrides").at("tokens") == 820864);
  // A pool that differs by one rounding is accepted; a pool that differs by two is refused.
  CHECK(calibrate(folder, info_log(14.99, 50.11, 410432), scenario()).err.empty());
  CHECK(has(calibrate(folder, info_log(14.99, 50.12, 410432), scenario()).err, "50.12 GiB"));
  CHECK(has(calibrate(folder, info_log(14.99, 50.08, 410432), scenario()).err, "50.08 GiB"));
  const CalibrateRun two = calibrate(folder, h100_log(), scenario(R"(, "gpu_count": 2)"));
  CHECK(has(two.err, "weights of 14.99 GiB in the log, 7.48 GiB predicted"));
  CHECK(has(two.err, "are 25.05 GiB"));
  CHECK(has(calibrate(folder, h100_log(), scenario(R"(, "engine": {"block_tokens": 128})")).err,
            "not a multiple of the scenario's block size 128"));
}

TEST_CASE("calibrate: without a scenario the missing terms of the pool are named") {
  const fs::path folder = fresh("calibrate-alone");
  write(folder / "v.log", h100_log());
  const Outcome alone =
      run_kvsim({"calibrate", "--from-log", "v.log", "-o", "o.json", "-q"}, folder);
  CHECK(alone.status == 0);
  CHECK(has(alone.err,
            "v.log: the log's KV cache is not in the overrides: the log does not state memory of "
            "the GPU, memory fraction, non-torch, activation peak; name the SCENARIO"));
  CHECK(has(text_of(folder / "o.json"), "// the log's KV cache is not in the overrides"));
  CHECK_FALSE(has(text_of(folder / "o.json"), "\"activation\""));
}

}  // namespace
}  // namespace kvsim
