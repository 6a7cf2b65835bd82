// Streaming heads hold only sinks and recent tokens between the pieces of a prompt: entries that a
// piece attends to in these heads, in a prefill and in an engine's iterations.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/calibration.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/methods/resolve/masked.hpp"
#include "models/methods/resolve/measured.hpp"
#include "models/methods/streaming_heads.hpp"
#include "models/stack/stack.hpp"
#include "tests/support/check.hpp"
#include "tests/support/mixed.hpp"

namespace kvsim {
namespace {

using test::rel;

std::shared_ptr<const Method> duo(const Llm& llm, double fraction, std::int64_t prompt) {
  const AttentionSpec& a = llm.layers.front().attention;
  const MethodContext site{
      .shape = {.n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim},
      .n_layers = llm.n_layers(),
      .d_model = llm.d_model};
  auto method = make_method({"duo-attention",
                             {{"streaming_fraction", fraction},
                              {"n_sink", std::int64_t{64}},
                              {"n_recent", std::int64_t{256}}},
                             {}},
                            prompt, site);
  auto law = expected_law(*method, prompt, llm.n_layers());
  REQUIRE(law);
  return with_measured_law(std::move(method), std::move(*law), llm.n_layers());
}

CostInput input(const Llm& llm, const Method& method, const Stack& stack) {
  return {.llm = &llm, .method = &method, .stack = &stack};
}

/// A stack that processes prompts in pieces of `tokens` tokens.
Stack in_pieces(const char* name, std::int64_t tokens) {
  Stack stack = find_stack(name);
  stack.prefill_chunk = tokens;
  stack.per_head_blocks = stack.growth == CacheGrowth::kPaged;
  return stack;
}

/// A layer's prompt attention.
struct Attention {
  double flops = 0, read = 0, written = 0, seconds = 0;
  std::int64_t launches = 0;
  std::vector<Op> ops;

  void add(const OpGraph& graph, const Roofline& roofline) {
    for (OpIndex i = 0; i < graph.size(); ++i) {
      const Op& op = graph.op(i);
      if (op.family != OpFamily::kPrefillAttention) continue;
      flops += op.flops.count();
      read += op.bytes_read;
      written += op.bytes_written;
      seconds += roofline.time(op).count();
      launches += op.launches;
      ops.push_back(op);
    }
  }
};

Attention of_prefill(const CostInput& in, std::int64_t prompt, const Roofline& roofline) {
  Attention out;
  out.add(prefill_layer(in, 0, {.prompt = prompt, .kept = prompt, .score_rows = prompt}), roofline);
  return out;
}

/// The same prompt in iterations of one piece each.
Attention of_iterations(const CostInput& in, std::int64_t prompt, std::int64_t size,
                        const Roofline& roofline) {
  Attention out;
  for (std::int64_t before = 0; before < prompt; before += size) {
    const PrefillChunk chunk{.tokens = std::min(size, prompt - before),
                             .before = before,
                             .last = before + size >= prompt};
    const Step step = mixed_step(in, {.loads = {}, .chunks = {&chunk, 1}});
    for (const Segment& segment : step.segments) {
      if (segment.first_layer == 0) out.add(*segment.graph, roofline);
    }
  }
  return out;
}

const std::vector<double> kFractions{0, 0.1, 0.25, 0.5, 0.75, 1};

TEST_CASE("only DuoAttention drops entries of streaming heads before a prompt has ended") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const AttentionSpec& a = llm.layers.front().attention;
  const MethodContext site{
      .shape = {.n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim},
      .n_layers = llm.n_layers(),
      .d_model = llm.d_model};
  for (const MethodInfo& info : builtin_methods()) {
    MethodSpec spec{.name = info.name, .params = {}, .budget = std::nullopt};
    if (takes_budget(info.name)) spec.budget = Budget{.fraction = 0.5, .entries = 0};
    const auto method = make_method(spec, 8000, site);
    const StreamingHeads heads = streaming_heads(*method, 32, 8);
    INFO(info.name);
    CHECK((heads.share > 0) == (info.name == "duo-attention"));
    CHECK((heads.entries > 0) == (info.name == "duo-attention"));
    // Masked entries are held and attended to.
    CHECK(streaming_heads(*masked(method), 32, 8).share == 0);
  }
  const StreamingHeads heads = streaming_heads(*duo(llm, 0.75, 8000), 32, 8);
  CHECK(heads.share == 0.75);
  CHECK(heads.entries == 320);
}

TEST_CASE("a prompt in one piece or in fully held pieces is attended to like the full cache") {
  const Gpu& gpu = find_gpu("A100-80GB-SXM");
  const Llm& llm = find_llm("llama-2-7b");
  const auto full = make_method({"full", {}, {}}, 2500);
  for (const char* name : {"torch-static", "vllm", "hf-flash", "hf-eager", "ideal"}) {
    for (const std::int64_t pieces : {0, 2500, 9999}) {
      const Stack stack = in_pieces(name, pieces);
      const Roofline roofline{gpu, stack, builtin_calibration()};
      for (const double fraction : kFractions) {
        const auto method = duo(llm, fraction, 2500);
        INFO(name, " pieces of ", pieces, " streaming ", fraction);
        CHECK(of_prefill(input(llm, *method, stack), 2500, roofline).ops ==
              of_prefill(input(llm, *full, stack), 2500, roofline).ops);
      }
    }
    // The second piece attends to 200 cached tokens, fewer than the 320 held.
    const Stack stack = in_pieces(name, 200);
    const Roofline roofline{gpu, stack, builtin_calibration()};
    const auto method = duo(llm, 0.75, 400);
    INFO(name);
    CHECK(of_prefill(input(llm, *method, stack), 400, roofline).ops ==
          of_prefill(input(llm, *full, stack), 400, roofline).ops);
    CHECK(of_iterations(input(llm, *method, stack), 400, 200, roofline).ops ==
          of_iterations(input(llm, *full, stack), 400, 200, roofline).ops);
  }
}

TEST_CASE(
    "without streaming heads pieces cost the same as the full cache, and less with more of them") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const auto full = make_method({"full", {}, {}}, 40'000);
  for (const char* gpu_name : {"H100-80GB-SXM", "A100-80GB-SXM"}) {
    for (const char* name : {"torch-static", "vllm", "ideal"}) {
      const Stack stack = in_pieces(name, 8192);
      for (const bool fitted : {false, true}) {
        const Roofline roofline{find_gpu(gpu_name), stack,
                                fitted ? builtin_calibration() : Calibration{}};
        const Attention whole = of_prefill(input(llm, *full, stack), 40'000, roofline);
        const Attention steps = of_iterations(input(llm, *full, stack), 40'000, 8192, roofline);
        Attention prefill = whole;
        Attention iterations = steps;
        for (const double fraction : kFractions) {
          const auto method = duo(llm, fraction, 40'000);
          const CostInput in = input(llm, *method, stack);
          const Attention of = of_prefill(in, 40'000, roofline);
          const Attention in_steps = of_iterations(in, 40'000, 8192, roofline);
          INFO(gpu_name, " ", name, (fitted ? " fitted" : " nominal"), " streaming ", fraction);
          if (fraction == 0) {
            CHECK(of.ops == whole.ops);
            CHECK(in_steps.ops == steps.ops);
            continue;
          }
          CHECK(of.seconds < prefill.seconds);
          CHECK(of.flops < prefill.flops);
          CHECK(of.read < prefill.read);
          CHECK(in_steps.seconds < iterations.seconds);
          CHECK(in_steps.read < iterations.read);
          CHECK(of.written == rel(whole.written));
          // Both computations have the same work and nearly the same kernels.
          CHECK(in_steps.flops == rel(of.flops));
          CHECK(in_steps.read == rel(of.read));
          CHECK(in_steps.seconds == rel(of.seconds, 0.02));
          prefill = of;
          iterations = in_steps;
        }
      }
    }
  }
}

TEST_CASE("longer pieces cost more with streaming heads: they attend to whole pieces") {
  const Llm& llm = find_llm("llama-2-7b");
  const Gpu& gpu = find_gpu("A100-80GB-SXM");
  const auto method = duo(llm, 0.75, 100'000);
  double before = 0;
  for (const std::int64_t pieces : {5'000, 10'000, 20'000, 25'000, 50'000, 100'000}) {
    const Stack stack = in_pieces("torch-static", pieces);
    const Roofline roofline{gpu, stack, builtin_calibration()};
    const double seconds = of_prefill(input(llm, *method, stack), 100'000, roofline).seconds;
    INFO("pieces of ", pieces);
    CHECK(seconds > before);
    before = seconds;
  }
}

TEST_CASE("2,500 tokens in pieces of 1,000 with three of four heads streaming: by hand") {
  const Llm& llm = find_llm("llama-2-7b");  // 32 heads of 128 channels, each with separate keys
  const Stack stack = in_pieces("torch-static", 1000);
  const Roofline roofline{find_gpu("A100-80GB-SXM"), stack, {}};
  const auto method = duo(llm, 0.75, 2500);
  const CostInput in = input(llm, *method, stack);
  // Pairs: 2500^2 / 2 = 3,125,000 in retrieval heads. In streaming heads, 500,000 of the first
  // piece, 500,000 + 320 * 1000 of the second, 125,000 + 320 * 500 of the third.
  const double pairs = 0.25 * 3'125'000 + 0.75 * (500'000 + 820'000 + 285'000);
  // Tokens read: the 2,500, and the cached tokens of each piece: 1000 + 2000, or 320 + 320.
  const double tokens = 0.25 * 5500 + 0.75 * 3140;
  const double queries = 2500.0 * 32 * 128 * 2;
  for (const Attention& of :
       {of_prefill(in, 2500, roofline), of_iterations(in, 2500, 1000, roofline)}) {
    CHECK(of.flops == rel(2 * 32 * pairs * (128 + 128)));
    CHECK(of.read == rel(queries + tokens * 2 * 32 * 128 * 2));
    CHECK(of.written == rel(queries));
    // One kernel for the first piece, two for each later one.
    CHECK(of.launches == 5);
  }
}

TEST_CASE("chunks of several prompts: each streams by the prefix of its prompt") {
  const Llm& llm = find_llm("llama-2-7b");
  const Stack& stack = find_stack("ideal");
  const Roofline roofline{find_gpu("A100-80GB-SXM"), stack, {}};
  const auto method = duo(llm, 0.5, 5000);
  const std::vector<PrefillChunk> chunks{{.tokens = 700, .before = 0, .last = true},
                                         {.tokens = 300, .before = 4000, .last = false},
                                         {.tokens = 100, .before = 200, .last = false}};
  const Step step = mixed_step(input(llm, *method, stack), {.loads = {}, .chunks = chunks});
  Attention of;
  for (const Segment& segment : step.segments) {
    if (segment.first_layer == 0) of.add(*segment.graph, roofline);
  }
  const double near = 700 * 350 + 300 * (320 + 150) + 100 * (200 + 50);
  const double far = 300 * (4000 - 320);
  CHECK(of.flops == rel(2 * 32 * (near + 0.5 * far) * (128 + 128)));
}

/// DuoAttention with distinguished heads, distributed over the layers as in services.
std::shared_ptr<const Method> dealt_out(const Llm& llm, double fraction, std::int64_t prompt) {
  const AttentionSpec& a = llm.layers.front().attention;
  const MethodContext site{
      .shape = {.n_heads = a.n_heads, .n_kv_heads = a.n_kv_heads, .head_dim = a.head_dim},
      .n_layers = llm.n_layers()};
  auto method =
      make_method({"duo-attention", {{"streaming_fraction", fraction}}, {}}, prompt, site);
  auto law = expected_law(*method, prompt, llm.n_layers(), a.n_kv_heads);
  REQUIRE(law);
  return with_measured_law(std::move(method), std::move(*law), llm.n_layers());
}

TEST_CASE("distinguished heads: shares of streaming heads for all heads and for fewer on a GPU") {
  const Llm& llm = find_llm("llama-3.1-8b");  // 32 layers of 8 KV heads
  for (const std::int64_t prompt : {1000, 100'000}) {
    // 77 of the 256 heads: two or three per layer.
    CHECK(streaming_heads(*dealt_out(llm, 0.3, prompt), 32, 8).share == rel(77.0 / 256));
    CHECK(streaming_heads(*dealt_out(llm, 0.5, prompt), 32, 8).share == rel(0.5));
    // Fewer heads on a GPU: they are assumed to be the longest heads.
    CHECK(streaming_heads(*dealt_out(llm, 0.5, prompt), 32, 4).share == rel(0.5));
    CHECK(streaming_heads(*dealt_out(llm, 0.5, prompt), 32, 1).share == 0);
  }
}

TEST_CASE("iterations of streaming heads cost the same as their graphs") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const std::vector<PrefillChunk> chunks{{.tokens = 700, .before = 0, .last = true},
                                         {.tokens = 300, .before = 4000, .last = false},
                                         {.tokens = 512, .before = 4488, .last = true}};
  const auto method = dealt_out(llm, 0.3, 5000);
  for (const Stack& named : builtin_stacks()) {
    for (const bool per_head : {false, true}) {
      Stack stack = named;
      stack.per_head_blocks = per_head;
      const Roofline roofline{find_gpu("H100-80GB-SXM"), stack, builtin_calibration()};
      const CostInput in = input(llm, *method, stack);
      MixedStepCost cost{in, roofline};
      const MixedStep step{.loads = {}, .chunks = chunks};
      INFO(stack.name, " blocks ", (per_head ? "of a head" : "across heads"));
      test::check_equal(cost.cost(step), test::graphs_cost(mixed_step(in, step), roofline));
    }
  }
}

TEST_CASE("blocks across heads keep entries of streaming heads, which are attended to") {
  const Llm& llm = find_llm("llama-3.1-8b");
  const auto full = make_method({"full", {}, {}}, 5000);
  const auto method = dealt_out(llm, 0.5, 5000);
  Stack stack = in_pieces("vllm", 1024);
  const Roofline roofline{find_gpu("H100-80GB-SXM"), stack, builtin_calibration()};
  const Attention whole = of_iterations(input(llm, *full, stack), 5000, 1024, roofline);
  const Attention apart = of_iterations(input(llm, *method, stack), 5000, 1024, roofline);
  CHECK(apart.seconds < whole.seconds);
  stack.per_head_blocks = false;
  CHECK(of_iterations(input(llm, *method, stack), 5000, 1024, roofline).ops == whole.ops);
  // A GPU with one of the eight heads waits for GPUs that have a retrieval head.
  stack.per_head_blocks = true;
  Llm shard = llm;
  for (LayerSpec& layer : shard.layers) {
    layer.attention.n_heads /= 8;
    layer.attention.n_kv_heads /= 8;
  }
  CHECK(of_iterations(input(shard, *method, stack), 5000, 1024, roofline).ops ==
        of_iterations(input(shard, *full, stack), 5000, 1024, roofline).ops);
}

TEST_CASE("a latent is shared by all heads so no part of it is dropped") {
  const Llm& llm = find_llm("deepseek-v2-lite");
  const Stack stack = in_pieces("vllm", 1024);
  const Roofline roofline{find_gpu("H100-80GB-SXM"), stack, builtin_calibration()};
  const auto full = make_method({"full", {}, {}}, 5000);
  const auto method = duo(llm, 0.5, 5000);
  CHECK(of_prefill(input(llm, *method, stack), 5000, roofline).ops ==
        of_prefill(input(llm, *full, stack), 5000, roofline).ops);
  CHECK(of_iterations(input(llm, *method, stack), 5000, 1024, roofline).ops ==
        of_iterations(input(llm, *full, stack), 5000, 1024, roofline).ops);
}

}  // namespace
}  // namespace kvsim
