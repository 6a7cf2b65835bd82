#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "models/cost/iteration/layer_split.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/compiled_point.hpp"
#include "sim/batch/static_run.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

StaticSpec spec_of(const char* model, std::int32_t gpus, const char* method = "full",
                   const char* stack = "hf-sdpa") {
  constexpr std::int64_t kPrompt = 3000;
  MethodSpec spec{method, {}, {}};
  if (spec.name != "full") spec.budget = Budget{.entries = 512};
  return {.llm = &find_llm(model),
          .gpu = &find_gpu("A100-80GB-SXM"),
          .stack = &find_stack(stack),
          .method = make_method(spec, kPrompt, {.n_layers = find_llm(model).n_layers()}),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16,
          .batch = 4,
          .prompt_tokens = kPrompt,
          .output_tokens = 20,
          .tensor_parallel = gpus};
}

std::vector<std::int32_t> layers_each(const char* model, std::int32_t gpus) {
  std::vector<std::int32_t> out;
  for (const LayerRange& range : device_map(find_llm(model), {Dtype::kBf16, nullptr}, gpus)) {
    out.push_back(range.last - range.first);
  }
  return out;
}

TEST_CASE("device_map: layers of Llama-3.1-8B solved by hand") {
  // Layer 436,207,616 B, embedding and head 1,050,673,152 B each, all 16,059,990,016 B. Two GPUs:
  // 8,029,995,008 + 1.25 layers = 8,575,254,528; the first reserves the head's bytes and has the
  // embedding: 6,473,908,224 B hold 14 layers.
  CHECK(layers_each("llama-3.1-8b", 2) == std::vector{14, 18});
  // Four: 4,560,257,024 each, 10 layers; the first has 2,458,910,720 for layers: 5.
  CHECK(layers_each("llama-3.1-8b", 4) == std::vector{5, 10, 10, 7});
  CHECK(layers_each("llama-3.1-8b", 1) == std::vector{32});
  const auto ranges = device_map(find_llm("llama-3.1-8b"), {Dtype::kBf16, nullptr}, 4);
  CHECK(ranges[0].embedding);
  CHECK_FALSE(ranges[0].head);
  CHECK(ranges[3].head);
  CHECK_FALSE(ranges[3].embedding);
}

TEST_CASE("device_map: GPUs without layers are left out") {
  // 1/64 of the weights and 1.25 layers are smaller than the embedding, so only the last GPU
  // accepts it and all later modules.
  CHECK(layers_each("llama-3.1-8b", 64) == std::vector{32});
  // With GPT-2's embedding, the first of three GPUs has no memory for a layer.
  CHECK(layers_each("gpt2", 3).size() == 2);
}

TEST_CASE(
    "device_map: every layer is on one GPU, and the weights of the parts add up to the model") {
  for (const Llm& llm : builtin_llms()) {
    if (llm.unpacked_dtype || bits_of(llm.published_dtype) < 16 || llm.is_draft_head) continue;
    for (const std::int32_t gpus : {1, 2, 3}) {
      CAPTURE(llm.name);
      CAPTURE(gpus);
      const WeightStore store{Dtype::kBf16, nullptr};
      std::int32_t next = 0;
      Bytes sum;
      for (const LayerRange& range : device_map(llm, store, gpus)) {
        CHECK(range.first == next);
        next = range.last;
        sum += loaded_weight_bytes(stage_llm(llm, range), store);
      }
      CHECK(next == llm.n_layers());
      CHECK(sum == loaded_weight_bytes(llm, store));
    }
  }
}

TEST_CASE("split layers: time is one GPU's plus copies of hidden states, bytes are distributed") {
  for (const char* method : {"full", "pyramidkv", "streaming-llm"}) {
    CAPTURE(method);
    const StaticResult one = run_static(spec_of("llama-3.1-8b", 1, method));
    REQUIRE_FALSE(one.oom);
    Bytes before = one.peak_hbm;
    for (const std::int32_t gpus : {2, 4}) {
      const StaticSpec spec = spec_of("llama-3.1-8b", gpus, method);
      const StaticResult split = run_static(spec);
      REQUIRE_FALSE(split.oom);
      REQUIRE(split.gpus.size() == static_cast<std::size_t>(gpus));
      // 600 GB/s of NVLink in both directions; 4 sequences of 3,000 tokens of 4,096 values of 2 B.
      const double row = 4.0 * 4096 * 2 / 300e9;
      const double call = spec.stack->collective_latency.count();
      CHECK(split.prefill_time->count() ==
            test::rel(one.prefill_time->count() + gpus * (3000 * row + call), 1e-9));
      // For this model, launching a step on the host takes longer than computing it on the GPU.
      CHECK(*split.decode_time >= *one.decode_time);
      CHECK(split.decode_time->count() <=
            one.decode_time->count() + 20 * gpus * (row + call) + 1e-9);
      // Without the CUDA contexts, the sum of the parts equals the memory held on one GPU.
      Bytes held;
      for (const GpuBytes& gpu : split.gpus) {
        held += gpu.held - spec.stack->context;
        CHECK(gpu.peak() <= split.peak_hbm);
      }
      CHECK(held == one.timeline.back().held - spec.stack->context);
      CHECK(split.peak_hbm < before);
      CHECK(split.peak_hbm > Bytes{one.peak_hbm.count() / gpus});
      before = split.peak_hbm;
    }
  }
}

TEST_CASE("split layers: tensor parallelism is faster") {
  StaticSpec spec = spec_of("llama-2-13b", 4);
  spec.batch = 16;
  const StaticResult split = run_static(spec);
  Stack shared = *spec.stack;
  shared.splits_layers = false;
  spec.stack = &shared;
  const StaticResult parallel = run_static(spec);
  REQUIRE_FALSE(split.oom);
  REQUIRE_FALSE(parallel.oom);
  CHECK(split.prefill_time->count() > 2.5 * parallel.prefill_time->count());
  CHECK(*split.throughput_tok_s < *parallel.throughput_tok_s);
}

TEST_CASE("split layers: a model too large for one GPU runs, and the full GPU is named") {
  CHECK(run_static(spec_of("llama-3.1-70b", 1)).oom);
  const StaticResult two = run_static(spec_of("llama-3.1-70b", 2));
  CHECK_FALSE(two.oom);
  StaticSpec many = spec_of("llama-3.1-70b", 2);
  many.batch = 64;
  const StaticResult full = run_static(many);
  REQUIRE(full.oom);
  CHECK(full.oom->what.find(" on GPU ") != std::string::npos);
  CHECK_FALSE(full.throughput_tok_s);
  CHECK(full.peak_hbm <= full.usable_hbm);
}

TEST_CASE("split layers: a compiled point equals the run") {
  for (const std::int32_t gpus : {2, 3}) {
    const StaticSpec spec = spec_of("llama-3.1-8b", gpus);
    const StaticResult run = run_static(spec);
    CompiledPoint point{{.llm = spec.llm,
                         .gpu = spec.gpu,
                         .stack = spec.stack,
                         .method = [&](std::int64_t) { return spec.method; },
                         .weight_dtype = spec.weight_dtype,
                         .kv_dtype = spec.kv_dtype,
                         .tensor_parallel = gpus}};
    const PointResult at = point.at({4, 3000, 20});
    REQUIRE(at.fits);
    CHECK(at.peak() == run.peak_hbm);
    CHECK(at.kv_bytes == run.kv_bytes);
    CHECK(at.times->tok_s == test::rel(*run.throughput_tok_s, 1e-9));
    CHECK(at.times->prefill.count() == test::rel(run.prefill_time->count(), 1e-9));
    CHECK(point.largest_batch(3000, 20) >= 4);
  }
}

}  // namespace
}  // namespace kvsim
