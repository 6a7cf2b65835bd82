// Services of models whose layers hold states, indexes, windows or compressed entries in addition
// to rows.

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "models/gpu/gpu.hpp"
#include "models/llm/cache_summary.hpp"
#include "models/llm/catalogue.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

ServeResult serve(const Llm& llm, const RequestTrace& trace, std::optional<Bytes> hbm,
                  const MethodSpec& method = {"full", {}, {}},
                  std::optional<std::int64_t> max_num_seqs = std::nullopt) {
  Gpu gpu = find_gpu("H200-141GB-SXM");
  gpu.hbm = gpu.hbm_usable = hbm.value_or(40_GiB * 1024);
  const ServeSpec spec{.llm = &llm,
                       .gpu = &gpu,
                       .stack = &find_stack("vllm"),
                       .method = method,
                       .weight_dtype = Dtype::kBf16,
                       .kv_dtype = Dtype::kBf16,
                       .calibration = &builtin_calibration(),
                       .options = {.max_num_seqs = max_num_seqs,
                                   .prefill_chunk = 2048,
                                   .memory_fraction = 1.0,
                                   .weights = Bytes{0}},
                       .requests = std::make_shared<RequestTrace>(trace),
                       .scheduler = {.name = "vllm-v1"}};
  return run_serve(spec, {});
}

/// Maximum bytes of entries that the sequences held together.
double max_held(const ServeResult& r) {
  Bytes max;
  for (const ServeSample& sample : r.timeline.front()) max = std::max(max, sample.kv_logical);
  return static_cast<double>(max.count());
}

TEST_CASE("hybrid models are served, and one sequence holds the bytes in its summary") {
  for (const char* name : {"Qwen3-Next-80B-A3B", "Kimi-Linear-48B-A3B", "Nemotron-H-56B",
                           "Jamba-1.5-Mini", "Falcon-H1-34B", "DeepSeek-V3.2", "GLM-5.2",
                           "DeepSeek-V4-Flash", "MiniMax-M3", "Gemma-4-26B-A4B", "LFM2-1.2B"}) {
    INFO(name);
    const Llm& llm = find_llm(name);
    RequestTrace trace;
    trace.requests = {test::request(0, 3000, 40)};
    const ServeResult alone = serve(llm, trace, std::nullopt);
    CHECK(alone.completed == 1);
    // After each iteration; the last sample is taken before or after its last token is cached.
    CHECK(max_held(alone) >= held_bytes(llm, 3038, Dtype::kBf16));
    CHECK(max_held(alone) <= held_bytes(llm, 3040, Dtype::kBf16) + llm.n_layers());

    for (int i = 0; i < 12; ++i)
      trace.requests.push_back(test::request(0.01 * i, 800 + 90 * i, 30));
    const ServeResult many = serve(llm, trace, std::nullopt);
    CHECK(many.completed == 13);
    CHECK(max_held(many) > max_held(alone));
    CHECK(many.kv_capacity_tokens > 3040);
  }
}

TEST_CASE("a small GPU serves fewer sequences of a recurrent model at once") {
  const Llm& llm = find_llm("Nemotron-H-56B");
  RequestTrace trace;
  for (int i = 0; i < 24; ++i) trace.requests.push_back(test::request(0, 500, 200));
  const ServeResult large = serve(llm, trace, std::nullopt);
  // vLLM refuses to start with more sequences than the pool has blocks for their states.
  const ServeResult refused = serve(llm, trace, 10_GiB);
  CHECK(refused.completed == 0);
  const ServeResult small = serve(llm, trace, 10_GiB, {"full", {}, {}}, 8);
  CHECK(large.completed == 24);
  CHECK(small.completed == 24);
  CHECK(small.makespan > large.makespan);
}

TEST_CASE("a method frees memory of a hybrid model's full layers") {
  const Llm& llm = find_llm("Qwen3-Next-80B-A3B");
  RequestTrace trace;
  trace.requests = {test::request(0, 16'000, 40)};
  const MethodSpec snapkv{"snapkv", {}, Budget{.fraction = 0, .entries = 512}};
  const ServeResult r = serve(llm, trace, std::nullopt, snapkv);
  CHECK(r.completed == 1);
  const auto noted = [&](std::string_view words) {
    return std::any_of(r.notes.begin(), r.notes.end(), [&](const std::string& note) {
      return note.find(words) != std::string::npos;
    });
  };
  CHECK(noted("36 gated-delta layers are not compressed"));
}

/// 3 layers with a window of 64 tokens and one full layer, each with one KV head of 64: 256 B per
/// token.
Llm windowed(const char* type) {
  Llm llm = test::small_llm();
  llm.model_type = type;
  llm.layers.resize(1);
  LayerSpec layer = llm.layers.front();
  layer.attention.n_kv_heads = 1;
  layer.attention.head_dim = layer.attention.v_head_dim = 64;
  llm.layers = {layer};
  layer.attention.window = 64;
  llm.layers.insert(llm.layers.end(), 3, layer);
  return llm;
}

ServeResult on_sglang(const char* version, const Llm& llm, const RequestTrace& trace) {
  test::SmallService service;
  service.llm = &llm;
  service.stack = std::string{"sglang@"} + version;
  service.blocks = 4096;
  service.block_tokens = 1;
  service.times = {.iteration = 1e-3, .per_token = 1e-6, .per_entry = 1e-6};
  service.scheduler.name = "sglang";
  service.trace = trace;
  return service.run();
}

TEST_CASE("SGLang without a pool for windows holds every token in all layers and finds prefixes") {
  const Llm llm = windowed("gpt_oss");
  RequestTrace trace;
  trace.requests = {test::request(0, 300, 20)};
  const ServeResult uniform = on_sglang("0.5.7", llm, trace);
  const ServeResult windows = on_sglang("0.5.8", llm, trace);
  REQUIRE(uniform.completed == 1);
  // 318 tokens before the last step: 4 layers of 256 B, or one layer and 3 of 64 tokens.
  CHECK(max_held(uniform) == 318 * 4 * 256);
  CHECK(max_held(windows) == (318 + 3 * 64) * 256);
  // Attention reads the window in both: 1 ms, 1 us per token and 1 us per entry of the layers'
  // mean.
  CHECK(uniform.makespan == windows.makespan);
  // The second request finds the first one's prompt, which freed windows no longer hold.
  trace.prefix_block = 16;
  for (std::uint64_t b = 0; b < 19; ++b) trace.prefix_ids.push_back(b);
  trace.requests.push_back(test::request(10, 300, 20));
  for (Request& r : trace.requests) r.prefix_count = 19;
  // All except the last token.
  CHECK(on_sglang("0.5.7", llm, trace).prefix_hit_tokens == 299);
  CHECK(on_sglang("0.5.8", llm, trace).prefix_hit_tokens == 0);
}

}  // namespace
}  // namespace kvsim
