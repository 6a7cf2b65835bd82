#include <algorithm>
#include <string>
#include <utility>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "sim/batch/static_run.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
double gib(Bytes n) { return static_cast<double>(n.count()) / kGiB; }

StaticSpec spec_of(const char* model, const char* stack, std::int64_t prompt, std::int64_t output) {
  return {.llm = &find_llm(model),
          .gpu = &find_gpu("A100-80GB-SXM"),
          .stack = &find_stack(stack),
          .method = make_method({"full", {}, {}}, prompt, {}),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16,
          .batch = 1,
          .prompt_tokens = prompt,
          .output_tokens = output};
}

TEST_CASE("tuple caches hold two copies of the whole cache at a step's end") {
  // The prompt is so short that the prefill's score matrices are not the peak.
  const StaticResult legacy = run_static(spec_of("llama-2-7b", "hf-legacy", 500, 4));
  const StaticResult dynamic = run_static(spec_of("llama-2-7b", "hf-sdpa", 500, 4));
  REQUIRE_FALSE(legacy.oom);
  // 2 x 32 layers x 4096 x 2 B per token: the old cache of 503 tokens is held next to the new one.
  const Bytes old{std::int64_t{2} * 32 * 4096 * 2 * 503};
  CHECK(legacy.kv_bytes == dynamic.kv_bytes);
  const double more = gib(legacy.decode_peak) - gib(dynamic.decode_peak);
  // DynamicCache's peak holds a longer copy of one layer's keys.
  CHECK(more == doctest::Approx(gib(old)).epsilon(0.04));
  Bytes copies;
  for (const PeakTerm& term : legacy.peak_terms) {
    if (term.owner == "concat_copy") copies += term.bytes;
  }
  CHECK(copies >= old - Bytes{std::int64_t{2} * 4096 * 2 * 503});
}

TEST_CASE("torch.cat loads 16-bit rows in vectors from PyTorch 2.8 on, others as before") {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp32}) {
    StaticSpec spec = spec_of("llama-2-7b", "hf-sdpa", 8000, 4);
    spec.weight_dtype = spec.kv_dtype = dtype;
    spec.batch = 4;
    spec.gpu = &find_gpu("A100-80GB-SXM");
    const StaticResult before = run_static(spec);
    spec.stack = &find_stack("hf-sdpa-torch28");
    const StaticResult after = run_static(spec);
    REQUIRE_FALSE(before.oom);
    REQUIRE_FALSE(after.oom);
    CHECK(after.peak_hbm == before.peak_hbm);
    CHECK(*after.prefill_time == *before.prefill_time);
    const double ratio = after.decode_time->count() / before.decode_time->count();
    if (dtype == Dtype::kBf16) {
      // Only the copies are faster, by a factor of 1.39 / 0.84.
      CHECK(ratio > 0.84 / 1.39);
      CHECK(ratio < 0.9);
    } else {
      CHECK(ratio == doctest::Approx(1).epsilon(0.01));
    }
  }
}

TEST_CASE("the Llama code before transformers 4.36 holds its scores in memory") {
  const StaticResult legacy = run_static(spec_of("llama-2-7b", "hf-legacy", 4096, 0));
  const StaticResult fused = run_static(spec_of("llama-2-7b", "hf-sdpa", 4096, 0));
  REQUIRE_FALSE(legacy.oom);
  // 32 heads x 4096^2 scores: during the softmax at least one copy in 16 bit and one in fp32.
  const double scores = 32.0 * 4096 * 4096 * (2 + 4) / kGiB;
  CHECK(gib(legacy.prefill_peak) - gib(fused.prefill_peak) > 0.9 * scores);
  CHECK(*legacy.prefill_time > *fused.prefill_time);
}

TEST_CASE("code that evicts by a mask keeps every entry and LESS maps them all again") {
  const auto run = [](const char* stack, const char* method, std::int64_t batch,
                      std::int64_t prompt, std::int64_t output) {
    StaticSpec spec = spec_of("llama-2-7b", stack, prompt, output);
    spec.batch = batch;
    MethodSpec of{method, {}, {}};
    if (takes_budget(method)) of.budget = Budget{.fraction = 0.05, .entries = 0};
    if (of.name == "less") of.params["hidden"] = std::int64_t{512};
    spec.method = make_method(of, prompt,
                              {.recorded = Dtype::kBf16,
                               .shape = {.n_heads = 32, .n_kv_heads = 32, .head_dim = 128},
                               .n_layers = 32,
                               .d_model = 4096});
    return run_static(spec, {.max_samples = 3});
  };
  const StaticResult full = run("hf-legacy", "full", 4, 2000, 4);
  const StaticResult masks = run("hf-masked", "h2o", 4, 2000, 4);
  const StaticResult drops = run("hf-eager", "h2o", 4, 2000, 4);
  REQUIRE_FALSE(masks.oom);
  // H2O's scores are stored in addition to the full cache.
  CHECK(masks.kv_bytes > full.kv_bytes);
  CHECK(gib(masks.kv_bytes) == doctest::Approx(gib(full.kv_bytes)).epsilon(0.02));
  CHECK(gib(drops.kv_bytes) < 0.1 * gib(masks.kv_bytes));
  const bool is_noted =
      std::any_of(masks.notes.begin(), masks.notes.end(),
                  [](const std::string& n) { return n.find("masked out") != std::string::npos; });
  CHECK(is_noted);
  // LESS: two copies of 512 features of every cached key, 4 x 32 heads x 2004 x 512 x 2 B each.
  const StaticResult less = run("hf-masked", "less", 4, 2000, 4);
  CHECK(gib(less.decode_peak) - gib(masks.decode_peak) ==
        doctest::Approx(2 * 4.0 * 32 * 2004 * 512 * 2 / kGiB).epsilon(0.1));
  CHECK(*less.decode_time > *masks.decode_time);
  // 8 x 8192 tokens use 32 GiB of cache: one copy fits next to the weights, two copies and scratch
  // do not.
  CHECK_FALSE(run("hf-sdpa", "full", 8, 4096, 4096).oom);
  const StaticResult out = run("hf-masked", "less", 8, 4096, 4096);
  REQUIRE(out.oom);
  CHECK(out.oom->phase == "decode");
}

TEST_CASE("a prefill in chunks holds one chunk's activations") {
  StaticSpec spec = spec_of("llama-2-7b", "torch-static", 100'000, 0);
  const StaticResult whole = run_static(spec);
  double last = gib(whole.prefill_peak);
  for (const std::int64_t chunk : {50'000, 20'000, 10'000}) {
    spec.options.prefill_chunk = chunk;
    const StaticResult r = run_static(spec);
    CHECK(gib(r.prefill_peak) < last);
    last = gib(r.prefill_peak);
    // Weights, cache and context are constant: the rest is proportional to the chunk.
    const double fixed = gib(r.peak_owners.at("weights")) + gib(r.peak_owners.at("kv_cache")) +
                         gib(r.peak_owners.at("context"));
    const double whole_rest = gib(whole.peak_owners.at("activations"));
    CHECK(gib(r.prefill_peak) - fixed ==
          doctest::Approx(whole_rest * static_cast<double>(chunk) / 100'000).epsilon(1e-3));
    CHECK(r.flops == doctest::Approx(whole.flops).epsilon(1e-12));
    CHECK(r.prefill_time->count() >= whole.prefill_time->count());
  }
}

TEST_CASE("tensor parallelism shares work and memory and pays collectives") {
  StaticSpec spec = spec_of("llama-3.1-70b", "vllm", 4000, 4);
  spec.gpu = &find_gpu("H200-141GB-SXM");
  spec.batch = 4;
  spec.tensor_parallel = 2;
  const StaticResult two = run_static(spec);
  spec.tensor_parallel = 8;
  const StaticResult eight = run_static(spec);
  REQUIRE_FALSE(two.oom);
  REQUIRE_FALSE(eight.oom);
  CHECK(eight.flops == doctest::Approx(two.flops / 4).epsilon(0.01));
  CHECK(eight.kv_bytes * 4 == two.kv_bytes);
  CHECK(gib(eight.peak_owners.at("weights")) ==
        doctest::Approx(gib(two.peak_owners.at("weights")) / 4).epsilon(0.01));
  CHECK(*eight.decode_tok_s > *two.decode_tok_s);
  CHECK(*eight.decode_tok_s < 4 * *two.decode_tok_s);
  const StaticResult with_terms = run_static(spec, {.time_terms = true});
  double collectives = 0;
  for (const TimeTerm& term : with_terms.explained.back().terms) {
    if (term.family == "collective") collectives += static_cast<double>(term.layers * term.calls);
  }
  CHECK(collectives == 2 * 80);  // two all-reduces per layer; the gather is outside of layers
}

TEST_CASE("a static cache that is attended whole costs its capacity and not its tokens") {
  StaticSpec spec = spec_of("llama-3.1-8b", "gpt-fast-eager", 100, 8);
  spec.options.max_model_len = 16384;
  const StaticResult small = run_static(spec);
  spec.options.max_model_len = 65536;
  const StaticResult large = run_static(spec);
  CHECK(*small.decode_tok_s > 2 * *large.decode_tok_s);
  // The boolean mask has the square of the full length, one byte per pair.
  CHECK(large.peak_owners.at("mask").count() == std::int64_t{65536} * 65536);
  CHECK(small.peak_owners.at("mask").count() == std::int64_t{16384} * 16384);
}

TEST_CASE("paged caches are charged whole blocks") {
  StaticSpec spec = spec_of("llama-3.1-8b", "vllm", 1001, 1);
  spec.batch = 3;
  const StaticResult r = run_static(spec);
  // 1002 tokens are 63 blocks of 16; 131072 B per token.
  CHECK(r.kv_bytes.count() == std::int64_t{3} * 63 * 16 * 131072);
}

/// Seconds of a decode step per byte of cache, between two lengths.
double slope(const char* model, const char* stack, Dtype dtype, std::int64_t from,
             std::int64_t to) {
  const auto step = [&](std::int64_t prompt) {
    StaticSpec spec = spec_of(model, stack, prompt, 1);
    spec.weight_dtype = spec.kv_dtype = dtype;
    const StaticResult r = run_static(spec);
    REQUIRE_FALSE(r.oom);
    return std::pair{r.decode_time->count(), static_cast<double>(r.kv_bytes.count())};
  };
  const auto [short_time, short_bytes] = step(from);
  const auto [long_time, long_bytes] = step(to);
  return (long_time - short_time) / (long_bytes - short_bytes);
}

TEST_CASE("a pool shortage is reported for a method whose law covers only whole chunks") {
  // 1,820 tokens are 91 chunks of 20; for fewer tokens only a replay can count the kept entries.
  for (const char* stack : {"vllm", "trtllm", "sglang"}) {
    INFO(stack);
    StaticSpec spec = spec_of("llama-3-8b", stack, 1820, 30);
    spec.method = make_method({"chunkkv", {}, Budget{.fraction = 0.473, .entries = 0}}, 1820,
                              {.recorded = Dtype::kBf16,
                               .shape = {.n_heads = 32, .n_kv_heads = 8, .head_dim = 128},
                               .n_layers = 32});
    REQUIRE(spec.method->entries_held(0, 1820, 1820));
    REQUIRE_FALSE(spec.method->entries_held(0, 1819, 1819));
    REQUIRE_FALSE(run_static(spec).oom);
    spec.batch = 1000;
    const StaticResult run = run_static(spec);
    REQUIRE(run.oom);
    CHECK(run.oom->what.find("cache blocks beyond token") != std::string::npos);
    CHECK(run.oom->tokens > 1);
    CHECK(run.oom->tokens <= 1850);
  }
}

TEST_CASE("the time per byte of cache: copies, expansion, occupancy, and none of them") {
  // Concatenating caches on A100: 4.0 to 4.8 ms/GB in published runs (KP-059 to KP-085, ZM-032).
  const double flash = slope("llama-3.1-8b", "hf-flash", Dtype::kBf16, 64000, 128000);
  CHECK(flash > 4.0e-12);
  CHECK(flash < 4.9e-12);
  // fp32 elements: half as many per byte, but one sequence leaves processors idle (4.1).
  const double wide = slope("llama-2-7b", "hf-sdpa", Dtype::kFp32, 10000, 20000);
  CHECK(wide > 3.2e-12);
  CHECK(wide < 4.6e-12);
  // KV heads repeated 7 times: 2.6 + 2.6 x 7 = 20.8 ms/GB in published runs of Qwen2.5-7B.
  const double repeated = slope("qwen2.5-7b", "hf-flash-repeat", Dtype::kBf16, 14000, 30000);
  CHECK(repeated == doctest::Approx(20.8e-12).epsilon(0.1));
  // A static cache: 0.567 to 0.59 ms/GB (DU-001 to DU-021, SH-001 to SH-014).
  const double fixed = slope("llama-2-7b", "torch-static", Dtype::kFp16, 20000, 40000);
  CHECK(fixed == doctest::Approx(0.59e-12).epsilon(0.04));
}

TEST_CASE("packed weights make decode faster and prefill not") {
  StaticSpec spec = spec_of("llama-2-7b", "gpt-fast", 2000, 8);
  const StaticResult full = run_static(spec);
  spec.weight_format = &find_weight_format("int8-channel");
  const StaticResult packed = run_static(spec);
  CHECK(*packed.decode_tok_s > 1.4 * *full.decode_tok_s);
  CHECK(packed.prefill_time->count() == doctest::Approx(full.prefill_time->count()).epsilon(0.05));
  CHECK(packed.flops == full.flops);
}

TEST_CASE("every stack runs and its terms add up") {
  for (const Stack& stack : builtin_stacks()) {
    for (const std::int32_t gpus : {1, 2}) {
      INFO(stack.name, " on ", gpus);
      StaticSpec spec = spec_of("llama-3.1-8b", stack.name.c_str(), 777, 3);
      spec.tensor_parallel = gpus;
      spec.batch = 2;
      const StaticResult r = run_static(spec, {.time_terms = true});  // checks that terms sum
      CHECK_FALSE(r.oom);
      CHECK(r.startup.has_value() == (stack.growth == CacheGrowth::kPaged));
      for (const PeakTerm& term : r.peak_terms) CHECK_FALSE(term.source.empty());
    }
  }
}

}  // namespace
}  // namespace kvsim
