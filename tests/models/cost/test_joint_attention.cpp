// Decodes together with prompts when one FlashAttention 2 call computes all attention of an
// iteration.

#include <optional>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/kernel_use.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

/// Sequences of 1,000 entries that decode, with or without 64 tokens of a prompt.
struct Service {
  std::string_view gpu = "a100-80gb-sxm", llm = "qwen3-32b", stack = "vllm@0.11.0";
  Dtype kv_dtype = Dtype::kBf16;
  std::int64_t sequences = 64, tokens = 1;
  bool with_prompt = true;

  [[nodiscard]] Stack site() const {
    return with_options(find_stack(stack), {}, {&find_gpu(gpu), &find_llm(llm), 1});
  }
  template <class Use>
  auto with_step(Use&& use) const {
    const Stack here = site();
    const FullMethod full;
    const CostInput in{.llm = &find_llm(llm),
                       .method = &full,
                       .stack = &here,
                       .weight_dtype = Dtype::kBf16,
                       .kv_dtype = kv_dtype,
                       .batch = 1};
    const auto all = 1000.0 * static_cast<double>(sequences);
    MixedStepCost cost{in, Roofline{find_gpu(gpu), here, builtin_calibration()}};
    const std::vector<DecodeLoad> loads(static_cast<std::size_t>(cost.layer_class_count()),
                                        {.attended = all, .held = all});
    const PrefillChunk chunk{.tokens = 64, .before = 0, .last = false};
    MixedStep step{.decodes = sequences, .loads = loads, .chunks = {}, .decode_tokens = tokens};
    if (with_prompt) step.chunks = {&chunk, 1};
    return use(in, step, cost);
  }
  /// The attention kernel of the decodes in the first layer that has one.
  [[nodiscard]] KernelUse kernel() const {
    return with_step([](const CostInput& in, const MixedStep& step, MixedStepCost&) {
      const Step graphs = mixed_step(in, step);
      for (const Segment& segment : graphs.segments) {
        for (OpIndex i = 0; i < segment.graph->size(); ++i) {
          const Op& op = segment.graph->op(i);
          if (op.family == OpFamily::kDecodeAttention && op.kernel) return *op.kernel;
        }
      }
      FAIL("no attention of decodes");
      return KernelUse{};
    });
  }
  [[nodiscard]] bool joins() const {
    return std::holds_alternative<PrefillAttentionCall>(kernel().call);
  }
  [[nodiscard]] double seconds() const {
    return with_step([](const CostInput&, const MixedStep& step, MixedStepCost& cost) {
      return cost.cost(step).time.count();
    });
  }
};

TEST_CASE("FlashAttention 2 gives each query head of a decode next to prompts a tile of 64 rows") {
  const KernelUse use = Service{}.kernel();
  REQUIRE(std::holds_alternative<PrefillAttentionCall>(use.call));
  const auto& call = std::get<PrefillAttentionCall>(use.call);
  CHECK(call.batch == 64);
  CHECK(call.q_heads == 64);
  CHECK(call.kv_heads == 8);
  // Half of 128 rows, the tiles of the form; each tile reads its 1,000 entries.
  CHECK(call.new_tokens == 128);
  CHECK(call.prefix == 1000);
  CHECK(use.times == 0.5);
}

TEST_CASE("only vLLM V1 on GPUs without FlashAttention 3 runs decodes and prompts in one kernel") {
  for (const std::string_view gpu :
       {"a100-80gb-sxm", "a800-80gb-sxm", "a10", "l40s", "l4", "l20", "rtx-4090"}) {
    INFO(gpu);
    CHECK(Service{.gpu = gpu, .llm = "qwen3-8b"}.joins());
  }
  for (const std::string_view gpu : {"h100-80gb-sxm", "h20", "gh200-96gb", "b200"}) {
    INFO(gpu);
    CHECK_FALSE(Service{.gpu = gpu}.joins());
  }
  CHECK_FALSE(Service{.stack = "sglang"}.joins());
  CHECK_FALSE(Service{.stack = "vllm-v0"}.joins());
  // Models with sinks and 8-bit caches use Triton's kernel; a step without prompts uses the decode
  // kernel.
  CHECK_FALSE(Service{.llm = "gpt-oss-20b"}.joins());
  CHECK_FALSE(Service{.kv_dtype = Dtype::kFp8E4m3}.joins());
  CHECK_FALSE(Service{.with_prompt = false}.joins());
  // Heads of layers with a window are not packed in a decode step without prompts either.
  CHECK(Service{.llm = "gemma-3-27b", .with_prompt = false}.joins());
  CHECK_FALSE(Service{.gpu = "h100-80gb-sxm", .llm = "gemma-3-27b", .with_prompt = false}.joins());
  // Drafts are verified with several rows, also without prompts.
  CHECK(Service{.tokens = 3, .with_prompt = false}.joins());
}

TEST_CASE("on an A100 the time that a prompt adds to decodes grows with their number and length") {
  const auto added = [](Service of) {
    const double with = of.seconds();
    of.with_prompt = false;
    return with - of.seconds();
  };
  double before = 0;
  for (const std::int64_t sequences : {8, 32, 128, 256}) {
    const double now = added({.sequences = sequences});
    INFO(sequences);
    CHECK(now > before);
    before = now;
  }
  // 256 sequences x 64 heads x 64 rows x 1,064 keys x 512 operations x 64 layers at 312 TFLOP/s,
  // minus the time of a decode step without prompts; with Hopper's kernel, only the prompt's rows
  // count.
  const double tiles = 256.0 * 64 * 64 * 1064 * 512 * 64 / 312e12;
  CHECK(before > tiles - 256 * 1000.0 * 8 * 512 * 64 / 2.039e12 / 0.7);
  CHECK(before < 3 * tiles);
  CHECK(added({.gpu = "h100-80gb-sxm", .sequences = 256}) < 0.1 * before);
}

TEST_CASE("prompts of gpt-oss use Triton's kernel on GPUs without FlashAttention 3") {
  const auto rate = [](std::string_view gpu, std::string_view llm, std::string_view stack) {
    return Service{.gpu = gpu, .llm = llm, .stack = stack}.site().prompt_attention_per_clock;
  };
  CHECK(rate("a100-80gb-sxm", "gpt-oss-20b", "vllm@0.11.0") == 256);
  CHECK(rate("l40s", "gpt-oss-120b", "vllm") == 256);
  CHECK(rate("h100-80gb-sxm", "gpt-oss-20b", "vllm@0.11.0") == 0);
  CHECK(rate("b200", "gpt-oss-20b", "vllm") == 0);
  CHECK(rate("a100-80gb-sxm", "qwen3-8b", "vllm@0.11.0") == 0);
  CHECK(rate("a100-80gb-sxm", "gpt-oss-20b", "sglang") == 0);
  CHECK(rate("a100-80gb-sxm", "gpt-oss-20b", "trtllm") == 0);

  // A chunk of 2,048 tokens after 30,000: 12 full layers of 64 heads of width 64, and 12 layers
  // with a window of 128 keys, at 256 flops per SM and clock.
  const Service service{.gpu = "a100-80gb-sxm", .llm = "gpt-oss-20b"};
  const Stack here = service.site();
  const FullMethod full;
  const CostInput in{.llm = &find_llm(service.llm),
                     .method = &full,
                     .stack = &here,
                     .weight_dtype = Dtype::kBf16,
                     .kv_dtype = Dtype::kBf16,
                     .batch = 1};
  const auto seconds = [&](const Stack& stack) {
    CostInput of = in;
    of.stack = &stack;
    MixedStepCost cost{of, Roofline{find_gpu(service.gpu), stack, builtin_calibration()}};
    const PrefillChunk chunk{.tokens = 2048, .before = 30000, .last = false};
    return cost.cost({.loads = {}, .chunks = {&chunk, 1}}).time.count();
  };
  Stack flash = here;
  flash.prompt_attention_per_clock = 0;
  const double pairs = 2048.0 * (30000 + 1024.5) + 2048.0 * 128;
  const double triton = 12 * 64 * pairs * 4 * 64 / (256 * sm_clocks(find_gpu(service.gpu)));
  CHECK(seconds(here) > triton);
  CHECK(seconds(here) - seconds(flash) > 0.5 * triton);
}

}  // namespace
}  // namespace kvsim
