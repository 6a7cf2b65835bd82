#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/units/error.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/memory/vllm_log.hpp"
#include "sim/memory/vllm_startup.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

using test::rel;

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
double gib(Bytes n) { return static_cast<double>(n.count()) / kGiB; }
Bytes from_gib(double n) { return Bytes{static_cast<std::int64_t>(n * kGiB)}; }

struct Case {
  std::string model = "llama-3.1-8b";
  StackOptions options{};
  std::int32_t gpus = 1;
  double total = 79.18;
  std::string stack = "vllm@0.11";  // the version of the published logs
  const WeightFormat* format = nullptr;
};

EngineStartup start(const Case& c) {
  const Llm& whole = find_llm(c.model);
  const Llm shard = tensor_shard(whole, c.gpus);
  const Stack stack =
      with_options(find_stack(c.stack), c.options, {&find_gpu("H100-80GB-SXM"), &whole, c.gpus});
  const auto method = make_method({"full", {}, {}}, 1, {});
  const CostInput in{.llm = &shard,
                     .method = method.get(),
                     .stack = &stack,
                     .weight_dtype = whole.compute_dtype,
                     .kv_dtype = whole.compute_dtype,
                     .weight_format = c.format,
                     .tensor_parallel = c.gpus,
                     .vocab_size = whole.vocab_size,
                     .measured_weights = c.options.weights};
  return engine_startup(in, from_gib(c.total), 16000, c.options);
}

TEST_CASE("the terms of a start fill the memory fraction down to less than a block") {
  for (const char* model : {"llama-3.1-8b", "qwen3-0.6b", "mistral-7b-v0.1", "deepseek-v2-lite"}) {
    for (const std::int64_t block : {1, 16, 128}) {
      INFO(model, " in blocks of ", block);
      const EngineStartup s = start({.model = model, .options = {.block_tokens = block}});
      CHECK(s.weights + s.non_torch + s.activation + s.kv_cache == s.usable);
      CHECK(s.tokens == s.blocks * block);
      const Bytes token = full_cache_bytes(find_llm("llama-3.1-8b"), 1, Dtype::kBf16);
      if (std::string{model} == "llama-3.1-8b") {
        CHECK(token * s.tokens <= s.kv_cache);
        CHECK(token * (s.tokens + block) > s.kv_cache);
      }
    }
  }
}

TEST_CASE("engines that load a vision encoder hold and profile it, unless it is left out") {
  const auto of = [](const char* stack, bool text_only, std::int32_t gpus = 1) {
    return start({.model = "qwen3.5-27b",
                  .options = {.max_model_len = 8192, .language_model_only = text_only},
                  .gpus = gpus,
                  .total = 94.97,
                  .stack = stack});
  };
  const VisionEncoder& vision = *find_llm("qwen3.5-27b").vision;
  const Bytes tower{2 * vision_parameters(vision)};
  const EngineStartup both = of("vllm", false), text = of("vllm", true);
  CHECK(both.weights - text.weights == tower);
  CHECK(of("vllm", false, 2).weights - of("vllm", true, 2).weights == Bytes{tower.count() / 2});
  CHECK(text.vision_activation == Bytes{});
  CHECK(both.vision_activation == vision_peak(vision, 16384, 1));
  CHECK(both.vision_outputs == vision_outputs(vision, 16384));
  CHECK(both.activation ==
        std::max(both.vision_activation,
                 both.vision_outputs + std::max(both.layer_activation, both.sampling_activation)));
  CHECK(both.kv_cache < text.kv_cache);
  // A 27B model of this family in vLLM 0.26 reports a peak of 2.22 GiB.
  CHECK(gib(both.vision_activation) == rel(2.22, 0.05));
  // SGLang allocates its pool without a profiling run; TensorRT-LLM has no encoder.
  CHECK(of("sglang", false).weights - of("sglang", true).weights == tower);
  CHECK(of("sglang", false).vision_activation == Bytes{});
  CHECK(of("trtllm", false).weights == of("trtllm", true).weights);
}

TEST_CASE("sampling in the profiling run takes the bytes per logit of the version's sampler") {
  const auto logits = [](const char* stack, const char* model) {
    const EngineStartup s = start({.model = model, .stack = stack});
    const auto of_1024 = static_cast<double>(find_llm(model).vocab_size) * 1024;
    const auto hidden = static_cast<double>(2 * 8192 * find_llm(model).d_model);
    return (static_cast<double>(s.sampling_activation.count()) - hidden) / of_1024;
  };
  CHECK(logits("vllm@0.16", "qwen3-8b") == rel(38.25, 1e-6));  // sorts all logits
  CHECK(logits("vllm@0.17", "qwen3-8b") == rel(14, 1e-6));     // masks them
  CHECK(logits("vllm@0.22", "qwen3-8b") == rel(6, 1e-6));      // V2 model runner: Qwen3 first,
  CHECK(logits("vllm@0.22", "llama-3.1-8b") == rel(14, 1e-6));
  CHECK(logits("vllm@0.25", "llama-3.1-8b") == rel(6, 1e-6));  // then all dense models
  CHECK(logits("vllm@0.30", "llama-3.1-8b") == rel(6, 1e-6));
  CHECK(logits("vllm@0.30", "qwen3-30b-a3b") == rel(14, 1e-6));
}

TEST_CASE("layers of several kinds share a pool: vLLM's groups, pools of other engines") {
  // States limit the number of running sequences: each sequence uses a block.
  const EngineStartup hybrid = start({.model = "qwen3.5-27b",
                                      .options = {.max_model_len = 32768, .max_num_seqs = 64},
                                      .total = 94.97,
                                      .stack = "vllm@0.24"});
  REQUIRE(hybrid.groups);
  CHECK(hybrid.groups->groups.size() == 4);
  CHECK(hybrid.groups->block_tokens == 784);
  CHECK(hybrid.block * hybrid.blocks <= hybrid.kv_cache);
  CHECK(hybrid.block * (hybrid.blocks + 1) > hybrid.kv_cache);
  CHECK(hybrid.sequence == hybrid.block * (42 + 3 * 2));
  CHECK(hybrid.tokens == hybrid.blocks * 32768 / 48);
  CHECK(state_limit_text(hybrid) ==
        fmt::format("max_num_seqs of at most {}: the pool has this number of blocks, and each "
                    "sequence takes one for its state",
                    hybrid.blocks));
  // Windows use more memory if two steps are in flight (0.26), and the sequences are not limited.
  const Case gemma{.model = "gemma-3-12b", .options = {.max_model_len = 32768}};
  Case later = gemma;
  later.stack = "vllm@0.27";
  CHECK(start(later).groups->request_blocks > start(gemma).groups->request_blocks);
  CHECK(state_limit_text(start(gemma)).empty());
  // Before 0.9.2, windows and full layers shared one kind of blocks.
  Case before = gemma;
  before.stack = "vllm@0.9";
  CHECK_FALSE(start(before).groups);
  CHECK_FALSE(start({}).groups);

  Case sglang = gemma;
  sglang.stack = "sglang";
  const EngineStartup pools = start(sglang);
  REQUIRE(pools.pools);
  REQUIRE(pools.pools->pools.size() == 1);  // no release has a pool for Gemma's windows
  CHECK(pools.tokens == pools.kv_cache.count() / pools.block.count());
  sglang.model = "gpt-oss-20b";
  const EngineStartup windows = start(sglang);
  REQUIRE(windows.pools->pools.size() == 2);
  sglang.stack = "sglang@0.5.7";
  CHECK(start(sglang).pools->pools.size() == 1);
  CHECK(start(sglang).tokens < windows.tokens);
  sglang.stack = "sglang";
  Bytes sum;
  for (const EnginePool& pool : pools.pools->pools) sum += pool.bytes();
  CHECK(sum <= pools.kv_cache);
  CHECK(sum > Bytes{pools.kv_cache.count() / 100 * 99});
  sglang.model = "qwen3.5-27b";
  const EngineStartup states = start(sglang);
  CHECK(states.pools->max_states() >= 1);
  CHECK(state_limit_text(states).find("the pool of states has") != std::string::npos);
  Case trtllm = gemma;
  trtllm.stack = "trtllm";
  CHECK(start(trtllm).pools->pools.size() == 2);
}

TEST_CASE("terms and capacity of a start move in the right direction") {
  const EngineStartup base = start({});
  const EngineStartup less = start({.options = {.memory_fraction = 0.8}});
  CHECK(less.tokens < base.tokens);
  CHECK(start({.options = {.max_num_seqs = 256}}).tokens > base.tokens);
  CHECK(start({.options = {.cuda_graphs = false}}).graphs == Bytes{});
  CHECK(start({.options = {.cuda_graphs = false}}).kv_cache == base.kv_cache);
  // Two GPUs: each has half of the weights and of the cache's heads, so the number of tokens more
  // than doubles.
  const EngineStartup two = start({.gpus = 2});
  CHECK(two.tokens > 2 * base.tokens);
  CHECK(gib(two.weights) == doctest::Approx(gib(base.weights) / 2).epsilon(0.001));
  CHECK(two.non_torch > base.non_torch);
  // No memory is left: the shortage is reported.
  const EngineStartup none = start({.model = "llama-3.1-70b"});
  CHECK(none.kv_cache == Bytes{});
  CHECK(none.missing > Bytes{});
  CHECK_FALSE(none.serves());
  // A measured term replaces the model's term, and the cache changes by the difference.
  const EngineStartup with_activation = start({.options = {.activation = from_gib(1)}});
  CHECK(with_activation.kv_cache - base.kv_cache == base.activation - with_activation.activation);
}

TEST_CASE("vLLM since 0.20 leaves room for CUDA graphs within its fraction") {
  const EngineStartup before = start({.options = {.memory_fraction = 0.9}, .stack = "vllm@0.19"});
  const EngineStartup since = start({.options = {.memory_fraction = 0.9}, .stack = "vllm@0.20"});
  CHECK(before.kv_cache - since.kv_cache == since.graphs);
  CHECK(since.graphs > Bytes{});
  CHECK(since.weights + since.non_torch + since.activation + since.graphs + since.kv_cache ==
        since.usable);
  CHECK(since.limit() == since.usable);
  CHECK(since.starts());
  const EngineStartup eager =
      start({.options = {.memory_fraction = 0.9, .cuda_graphs = false}, .stack = "vllm@0.20"});
  CHECK(eager.kv_cache == before.kv_cache);
  // Graphs are an uncertain term of the pool only if the engine counts them.
  const TermFactors twice{.graphs = 2};
  CHECK(at_factors(since, twice, find_stack("vllm@0.20"), {}).kv_cache ==
        since.kv_cache - since.graphs);
  CHECK(at_factors(before, twice, find_stack("vllm@0.19"), {}).kv_cache == before.kv_cache);
}

// By hand: of 100 GiB, weights use 40, other memory 10 and activations 8.
TEST_CASE("pools for each base of an engine's memory fraction, solved by hand") {
  const auto pool = [](FractionOf what) {
    return EngineStartup{.total = from_gib(100), .fraction = 0.8, .fraction_of = what};
  };
  const auto left = [&](FractionOf what, double weights) {
    return gib(pool(what).remaining_cache(from_gib(weights), from_gib(10), from_gib(8)));
  };
  const auto near = [](double value) { return doctest::Approx(value).epsilon(1e-8); };
  CHECK(left(FractionOf::kAll, 40) == near(22));            // 80 - 40 - 10 - 8
  CHECK(left(FractionOf::kBeforeWeights, 40) == near(32));  // 0.8 x 90 - 40
  CHECK(left(FractionOf::kAfterWeights, 40) == near(40));   // 0.8 x 50
  CHECK(left(FractionOf::kFree, 40) == near(33.6));         // 0.8 x 42
  // TensorRT-LLM counts its graphs before the pool: 0.8 x (42 - 2). Other engines capture them
  // later.
  for (const auto& [what, one] : {std::pair{FractionOf::kFree, 32.0}, {FractionOf::kAll, 22.0}}) {
    EngineStartup captured = pool(what);
    captured.graphs = from_gib(2);
    CHECK(gib(captured.remaining_cache(from_gib(40), from_gib(10), from_gib(8))) == near(one));
  }
  // The shortage is not scaled by the fraction.
  CHECK(left(FractionOf::kAll, 90) == near(-28));
  CHECK(left(FractionOf::kBeforeWeights, 90) == near(-18));
  CHECK(left(FractionOf::kAfterWeights, 95) == near(-5));
  CHECK(left(FractionOf::kFree, 90) == near(-8));
}

TEST_CASE("engines fill their memory fraction and a smaller GPU equals a larger reserve") {
  for (const char* name : {"vllm", "vllm-v0", "sglang", "trtllm", "lmdeploy"}) {
    INFO(name);
    const Case wanted{.stack = name};
    const EngineStartup s = start(wanted);
    CHECK(s.fraction_of == find_stack(name).fraction_of);
    CHECK(s.kv_cache > Bytes{});
    CHECK(s.remaining_cache(s.weights, s.non_torch, s.activation) == s.kv_cache);
    CHECK(s.weights + s.non_torch + s.non_kv_bytes() + s.kv_cache <= s.total);
    CHECK(s.starts());
    CHECK(s.demand_ratio() == 1);
    CHECK(s.limit() <= s.total);
    // Memory that is held simultaneously is within the limit of a run.
    CHECK(s.weights + s.non_torch + s.activation + s.kv_cache <= s.limit());
    // Uncertain terms are multiplied and weights are not. The pool is the remainder: on the real
    // GPU, or on a smaller GPU that represents it.
    const TermFactors factors{.activation = 1.5, .non_torch = 2, .graphs = 3};
    const Stack& stack = find_stack(name);
    const EngineStartup worse = at_factors(s, factors, stack, {});
    const auto times = [](double factor, Bytes b) {
      return doctest::Approx(factor * static_cast<double>(b.count())).epsilon(1e-6);
    };
    CHECK(worse.weights == s.weights);
    CHECK(static_cast<double>(worse.activation.count()) == times(1.5, s.activation));
    CHECK(static_cast<double>(worse.non_torch.count()) == times(2, s.non_torch));
    CHECK(static_cast<double>(worse.graphs.count()) == times(3, s.graphs));
    CHECK(worse.kv_cache < s.kv_cache);
    Gpu gpu;
    gpu.hbm = gpu.hbm_usable = s.total;
    Case there{.stack = name};
    set_start_end(factors, s, gpu, there.options);
    there.total = gib(gpu.hbm_usable);
    CHECK(gib(start(there).kv_cache) == doctest::Approx(gib(worse.kv_cache)).epsilon(1e-6));
    // Measured terms have no factor.
    const StackOptions measured{
        .non_torch = s.non_torch, .activation = s.activation, .graphs = s.graphs};
    CHECK(at_factors(s, factors, stack, measured).kv_cache == s.kv_cache);
    // A larger share never reduces the pool, and larger weights never increase it.
    CHECK(start({.options = {.memory_fraction = 0.95}, .stack = name}).tokens >
          start({.options = {.memory_fraction = 0.7}, .stack = name}).tokens);
    CHECK(start({.model = "llama-2-13b", .stack = name}).kv_cache < s.kv_cache);
  }
  // A model that nearly fills the GPU leaves memory for fractions of free memory, but none for 0.9
  // of all memory.
  const StackOptions fills{.weights = from_gib(72), .activation = from_gib(1)};
  CHECK(start({.options = fills}).kv_cache == Bytes{});
  CHECK(gib(start({.options = fills, .stack = "trtllm"}).kv_cache) ==
        doctest::Approx(0.9 * (79.18 - 72 - 1 - 1 - 0.4)).epsilon(1e-6));
}

TEST_CASE("a start without room for activations or a cache reports the shortage") {
  // At 0.99 of free memory, SGLang's weights and pool leave 0.8 GiB for activations.
  const EngineStartup tight = start({.options = {.memory_fraction = 0.99}, .stack = "sglang"});
  CHECK(tight.missing == Bytes{});
  CHECK(tight.shortage() ==
        tight.weights + tight.non_torch + tight.kv_cache + tight.non_kv_bytes() - tight.total);
  CHECK(tight.shortage() > Bytes{});
  CHECK_FALSE(tight.starts());
  CHECK(tight.demand_ratio() > 1);
  // 0.25 GiB of the card are outside the fraction, and vLLM's graphs use 0.4 GiB: it starts only
  // without them.
  const StackOptions nearly{.memory_fraction = 0.99, .activation = from_gib(1)};
  StackOptions eager = nearly;
  eager.cuda_graphs = false;
  const EngineStartup captured = start({.options = nearly, .total = 25});
  CHECK(captured.missing == Bytes{});
  CHECK(gib(captured.shortage()) == doctest::Approx(0.4 - 0.25).epsilon(1e-3));
  CHECK(start({.options = eager, .total = 25}).starts());
  CHECK(shortage_text(captured).find("leaves 1.25 GiB for activations and CUDA graphs") !=
        std::string::npos);
  for (const char* name : {"vllm", "sglang", "trtllm", "lmdeploy"}) {
    INFO(name);
    const EngineStartup large = start({.model = "llama-3.1-70b", .stack = name});
    CHECK(large.missing > Bytes{});
    CHECK_FALSE(large.starts());
    CHECK(large.demand_ratio() > 1);
    // If memory is increased by the demand ratio, nothing is missing, although the cache may be
    // empty.
    const double more = large.demand_ratio() * 1.0001 * gib(large.total);
    CHECK(start({.model = "llama-3.1-70b", .total = more, .stack = name}).missing == Bytes{});
    CHECK(start({.model = "llama-3.1-70b", .total = more * 0.999, .stack = name}).missing >
          Bytes{});
  }
}

// Start-up logs of other engines that were not used to fit constants. Terms of each: published rows
// by name.
TEST_CASE("published starts: KV cache within 1 % of a log that states the terms") {
  struct Row {
    const char* id;
    Case wanted;
    double kv_gib;
  };
  const StackOptions planner{.max_model_len = 16000, .block_tokens = 128};
  const auto v0 = [](std::int64_t length, double non_torch) {
    return StackOptions{.max_model_len = length, .non_torch = from_gib(non_torch)};
  };
  const std::vector<Row> rows{
      {"VL-004", {"llama-3-8b", v0(8192, 1.79), 1, 79.22, "vllm-v0"}, 53.29},
      {"VL-013", {"llama-3.1-8b", v0(20000, 0.35), 1, 23.58, "vllm-v0"}, 3.81},
      {"VL-060", {"llama-3.1-8b", planner}, 51.38},
      {"VL-065", {"qwen3-0.6b", planner}, 64.45},
      {"VL-070", {"qwen3-32b", planner}, 4.45},
  };
  for (const Row& row : rows) {
    const EngineStartup s = start(row.wanted);
    INFO(row.id, ": ", gib(s.kv_cache), " against ", row.kv_gib, "; activation ",
         gib(s.activation));
    // 1 % of the cache within the memory fraction, or 0.07 GiB if the cache is a small remainder.
    CHECK(std::abs(gib(s.kv_cache) - row.kv_gib) < std::max(0.01 * row.kv_gib, 0.07));
  }
}

TEST_CASE("a run stops at the token that exhausts the pool") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const Stack& stack = find_stack("vllm");
  StaticSpec spec{.llm = &llm,
                  .gpu = &find_gpu("H100-80GB-SXM"),
                  .stack = &stack,
                  .method = make_method({"full", {}, {}}, 1000, {}),
                  .weight_dtype = Dtype::kBf16,
                  .kv_dtype = Dtype::kBf16,
                  .batch = 1,
                  .prompt_tokens = 1000,
                  .output_tokens = 8};
  const StaticResult fits = run_static(spec);
  REQUIRE(fits.startup);
  CHECK_FALSE(fits.oom);
  spec.batch = fits.startup->tokens / 1008 + 8;
  const StaticResult full = run_static(spec);
  REQUIRE(full.oom);
  CHECK(full.oom->tokens <= 1008);
  CHECK(full.oom->requested > full.oom->free);
}

constexpr const char* kV0 =
    R"(INFO 11-20 10:10:10 worker.py:232] Memory profiling results: total_gpu_memory=23.58GiB initial_memory_usage=15.62GiB peak_torch_memory=17.06GiB memory_usage_post_profile=15.68GiB non_torch_memory=0.35GiB kv_cache_size=3.81GiB gpu_memory_utilization=0.90
INFO 11-20 10:10:09 model_runner.py:1077] Loading model weights took 14.9888 GB
INFO 11-20 10:10:11 gpu_executor.py:113] # GPU blocks: 1952, # CPU blocks: 2048
INFO 11-20 10:10:11 gpu_executor.py:117] Maximum concurrency for 20000 tokens per request: 1.56x
INFO 11-20 10:10:30 model_runner.py:1523] Graph capturing finished in 12 secs, took 0.34 GiB
)";
constexpr const char* kV07 =
    R"(INFO 02-10 worker.py:266] the current vLLM instance can use total_gpu_memory (23.51GiB) x gpu_memory_utilization (0.98) = 23.04GiB
INFO 02-10 worker.py:266] model weights take 13.95GiB; non_torch_memory takes 0.25GiB; PyTorch activation peak memory takes 0.19GiB; the rest of the memory reserved for KV Cache is 8.69GiB.
)";
constexpr const char* kV1 =
    R"(INFO 10-05 [gpu_model_runner.py:2653] Model loading took 14.9889 GiB and 3.1 seconds
DEBUG 10-05 [gpu_worker.py:276] Initial free memory: 78.60 GiB; Requested memory: 0.90 (util), 71.26 GiB
DEBUG 10-05 [gpu_worker.py:283] Total non KV cache memory: 19.88GiB; torch peak memory increase: 4.76GiB; non-torch forward increase memory: 0.13GiB; weights memory: 14.99GiB.
INFO 10-05 [gpu_worker.py:298] Available KV cache memory: 51.38 GiB
INFO 10-05 [kv_cache_utils.py:1087] GPU KV cache size: 420,864 tokens
INFO 10-05 [kv_cache_utils.py:1091] Maximum concurrency for 16,000 tokens per request: 26.30x
INFO 10-05 [gpu_model_runner.py:3480] Graph capturing finished in 4 secs, took -0.45 GiB
)";

TEST_CASE("the metric vllm:cache_config_info gives the pool and the memory fraction") {
  const std::string metrics =
      "# TYPE vllm:cache_config_info gauge\n"
      "vllm:cache_config_info{block_size=\"16\",cache_dtype=\"auto\",gpu_memory_utilization="
      "\"0.92\",kv_cache_size_tokens=\"83488\",num_gpu_blocks=\"5218\","
      "num_gpu_blocks_override=\"None\",sliding_window=\"None\"} 1.0\n";
  const VllmLog log = read_vllm_log(metrics, "metrics");
  CHECK(log.tokens == 83'488);
  CHECK(log.blocks == 5218);
  CHECK(*log.memory_fraction == test::rel(0.92, 1e-12));
  // Logs without the tokens label contain only the blocks.
  const auto at = metrics.find("kv_cache_size_tokens");
  const VllmLog blocks =
      read_vllm_log(metrics.substr(0, at) + metrics.substr(metrics.find("num_gpu_blocks")), "m");
  CHECK_FALSE(blocks.tokens);
  CHECK(blocks.blocks == 5218);
  CHECK_THROWS_AS((void)read_vllm_log("vllm:cache_config_info{num_gpu_blocks=\"None\"} 1\n", "m"),
                  InputError);
}

TEST_CASE("start-up logs of several vLLM versions are read") {
  const VllmLog v0 = read_vllm_log(kV0, "v0.log");
  CHECK(gib(*v0.total) == doctest::Approx(23.58));
  CHECK(gib(*v0.weights) == doctest::Approx(14.9888));
  CHECK(gib(*v0.non_torch) == doctest::Approx(0.35));
  CHECK(gib(*v0.activation) == doctest::Approx(17.06 - 14.9888));
  CHECK(gib(*v0.kv_cache) == doctest::Approx(3.81));
  CHECK(gib(*v0.graphs) == doctest::Approx(0.34));
  CHECK(*v0.blocks == 1952);
  CHECK(*v0.memory_fraction == doctest::Approx(0.9));
  CHECK(*v0.max_model_len == 20000);
  CHECK(*v0.max_concurrency == doctest::Approx(1.56));

  const VllmLog v07 = read_vllm_log(kV07, "v07.log");
  CHECK(gib(*v07.total) == doctest::Approx(23.51));
  CHECK(gib(*v07.weights) == doctest::Approx(13.95));
  CHECK(gib(*v07.non_torch) == doctest::Approx(0.25));
  CHECK(gib(*v07.activation) == doctest::Approx(0.19));
  CHECK(gib(*v07.kv_cache) == doctest::Approx(8.69));
  CHECK(*v07.memory_fraction == doctest::Approx(0.98));

  const VllmLog v1 = read_vllm_log(kV1, "v1.log");
  CHECK(gib(*v1.activation) == doctest::Approx(4.76));
  CHECK(gib(*v1.non_torch) == doctest::Approx(0.13));
  CHECK(*v1.tokens == 420864);
  CHECK(*v1.max_model_len == 16000);
  CHECK(gib(*v1.graphs) == doctest::Approx(-0.45));

  CHECK_THROWS_AS((void)read_vllm_log("nothing here\n", "x.log"), InputError);
  CHECK_THROWS_WITH((void)read_vllm_log("Model loading took 1.2.3 GiB\n", "x.log"),
                    "x.log:1: expected a number, got \"1.2.3\" in: Model loading took 1.2.3 GiB");
  CHECK_THROWS_WITH((void)read_vllm_log("\nGPU KV cache size: 99,000,000,000 tokens\n", "x.log"),
                    "x.log:2: expected a number of at most 4000000000, got \"99000000000\" in: GPU "
                    "KV cache size: 99,000,000,000 tokens");
  CHECK_THROWS_WITH((void)read_vllm_log("gpu_memory_utilization=90\n", "x.log"),
                    "x.log:1: expected a memory fraction in (0, 1], got 90 in: "
                    "gpu_memory_utilization=90");
}

TEST_CASE("lines of a start-up log may have any length") {
  // std::regex recursed once per character and overflowed the stack.
  const std::string digits(50'000, '7');
  for (const std::string& line :
       {"Model loading took " + digits + " GiB",
        "Graph capturing finished in " + digits + " secs, took",
        "GPU KV cache size: " + std::string(50'000, ','), "# GPU blocks: " + digits}) {
    try {
      (void)read_vllm_log(line + "\n", "x.log");
      FAIL("accepted");
    } catch (const InputError& error) {
      CHECK(std::string{error.what()}.size() < 600);
    }
  }
  std::string text(4U << 20U, ' ');
  for (std::size_t i = 0; i + 32 < text.size(); i += 32) text.replace(i, 18, "gpu kv cache size:");
  CHECK(*read_vllm_log(text + "GPU KV cache size: 420,864 tokens\n", "x.log").tokens == 420864);
}

TEST_CASE("the log of a failed start is refused and that of a successful restart is read") {
  const std::string oom =
      "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n";
  const std::string hint =
      "CUDA graphs can take additional memory. If you are running out of memory, consider "
      "decreasing `gpu_memory_utilization` or enforcing eager mode.\n";
  const auto refusal = [](const std::string& text) -> std::string {
    try {
      (void)read_vllm_log(text, "x.log");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(refusal(kV1).empty());
  CHECK(refusal(kV1 + hint).empty());  // advice that vLLM prints at every start
  CHECK(refusal(kV1 + oom).starts_with(
      "x.log:8: expected the log of a start that succeeded, got \"torch.OutOfMemoryError"));
  CHECK(refusal("Model loading took 30.1 GiB\nAvailable KV cache memory: -7.50 GiB\n")
            .starts_with("x.log:2: expected the log of a start that succeeded, got \"Available KV "
                         "cache memory: -7.50 GiB\""));
  CHECK(refusal("# GPU blocks: 0, # CPU blocks: 2048\n")
            .starts_with("x.log:1: expected a number above 0"));
  for (const char* size : {"nan", "-nan", "inf", "-inf"}) {
    INFO(size);
    CHECK(refusal(fmt::format("Available KV cache memory: {} GiB\n", size))
              .starts_with("x.log:1: expected a number"));
  }
  CHECK(refusal(oom + "vLLM API server version 0.9.1\n" + kV1).empty());
  const std::string loaded = "Model loading took 14.9889 GiB and 3.1 seconds\n";
  const std::string no_core =
      "RuntimeError: Engine core initialization failed. See root cause above.\n";
  const std::string expected = "x.log:2: expected the log of a start that succeeded, got \"";
  for (const char* failure :
       {"ValueError: To serve at least one request with the models's max seq len (131072), (16.00 "
        "GiB KV cache is needed, which is larger than the available KV cache memory (11.20 GiB).",
        "ValueError: The model's max seq len (131072) is larger than the maximum number of tokens "
        "that can be stored in KV cache (60000).",
        "RuntimeError: Engine core initialization failed. See root cause above.",
        "ValueError: Free memory on device (10.00/79.19 GiB) on startup is less than desired GPU "
        "memory utilization (0.9, 71.27 GiB)."}) {
    INFO(failure);
    const std::string text = loaded + failure + "\n";
    CHECK(refusal(text).starts_with(expected + std::string{failure}.substr(0, 40)));
    // The cause is reported, not its consequence, and a later start takes precedence.
    CHECK(refusal(text + no_core) == refusal(text));
    CHECK(refusal(text + "vLLM API server version 0.9.1\n" + kV1).empty());
  }
  // Capturing CUDA graphs may free some memory, but less than a GPU has. The engine started.
  const std::string started = "init engine (profile, create kv cache, warmup model) took 9.1 s\n";
  for (const char* size : {"-99.45 GiB", "-101836.8 MiB"}) {
    const std::string graphs = fmt::format("Graph capturing finished in 4 secs, took {}", size);
    CHECK(refusal(loaded + graphs + "\n" + started).starts_with(expected + graphs));
  }
  const VllmLog served =
      read_vllm_log(kV1 + std::string{"Application startup complete.\n"} + oom, "x.log");
  CHECK(served.warnings ==
        std::vector<std::string>{"line 9: the engine ran out of memory after its start"});
}

}  // namespace
}  // namespace kvsim
