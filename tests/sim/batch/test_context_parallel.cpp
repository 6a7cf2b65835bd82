// Runs and services whose entries are distributed over GPUs (decode context parallelism).

#include <algorithm>
#include <memory>
#include <string>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/units/error.hpp"
#include "sim/batch/memory_end.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

StaticSpec spec_of(const char* model, std::int32_t ranks, std::int32_t context,
                   const MethodSpec& method = {"full", {}, {}}) {
  const Llm& llm = find_llm(model);
  return {.llm = &llm,
          .gpu = &find_gpu("H200-141GB-SXM"),
          .stack = &find_stack("vllm"),
          .method = make_method(method, 4096, method_site(llm, Dtype::kBf16)),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16,
          .batch = 4,
          .prompt_tokens = 4092,
          .output_tokens = 4,
          .tensor_parallel = ranks,
          .options = {.context_parallel = context}};
}

TEST_CASE("the tokens of a pool grow with the number of GPUs that share them") {
  for (const auto& [model, ranks] : {std::pair{"deepseek-v2-lite", 4}, std::pair{"glm-4-9b", 8}}) {
    INFO(model);
    const StaticResult whole = run_static(spec_of(model, ranks, 1));
    const StaticResult dealt = run_static(spec_of(model, ranks, 4));
    REQUIRE(whole.startup);
    REQUIRE(dealt.startup);
    // Buffers of the prompt's attention differ slightly, so the numbers of blocks also differ.
    CHECK(dealt.startup->block == whole.startup->block);
    CHECK(dealt.startup->tokens ==
          dealt.startup->blocks * 4 * (whole.startup->tokens / whole.startup->blocks));
    CHECK(dealt.startup->weights == whole.startup->weights);
    CHECK(dealt.kv_bytes * 4 == whole.kv_bytes);
    const Stack stack = with_options(find_stack("vllm"), {.context_parallel = 4},
                                     {&find_gpu("H200-141GB-SXM"), &find_llm(model), ranks});
    const PoolInterval pool = pool_interval(*dealt.startup, stack, ranks, {});
    CHECK(pool.tokens_low <= dealt.startup->tokens);
    CHECK(pool.tokens_high >= dealt.startup->tokens);
    CHECK(pool.tokens_low > 3 * whole.startup->tokens);
    const auto said = [](const std::string& note) {
      return note.find("distributed over 4 GPUs") != std::string::npos;
    };
    CHECK(std::any_of(dealt.notes.begin(), dealt.notes.end(), said));
    CHECK(std::none_of(whole.notes.begin(), whole.notes.end(), said));
  }
}

TEST_CASE("among layers of several kinds those that keep all tokens are dealt") {
  // Three of four layers have states, which are not distributed.
  const StaticResult whole = run_static(spec_of("kimi-linear-48b-a3b", 4, 1));
  const StaticResult dealt = run_static(spec_of("kimi-linear-48b-a3b", 4, 4));
  REQUIRE(dealt.startup);
  REQUIRE(dealt.startup->groups);
  CHECK(dealt.startup->block == whole.startup->block);
  CHECK(dealt.startup->tokens > whole.startup->tokens);
  CHECK(dealt.startup->tokens < 4 * whole.startup->tokens);
  CHECK(dealt.kv_bytes < whole.kv_bytes);
  CHECK(dealt.kv_bytes * 4 > whole.kv_bytes);
}

TEST_CASE("caches that no engine deals are refused with the reason") {
  const auto why = [](const StaticSpec& spec) -> std::string {
    try {
      (void)run_static(spec);
    } catch (const InputError& e) {
      return e.what();
    }
    return "accepted";
  };
  const auto says = [&](const StaticSpec& spec, const char* words) {
    CHECK_MESSAGE(why(spec).find(words) != std::string::npos, why(spec));
  };
  CHECK(why(spec_of("deepseek-v2-lite", 4, 2)) == "accepted");
  says(spec_of("llama-3.1-8b", 8, 2), "expected a divisor of the 1 GPUs that hold each entry");
  says(spec_of("gpt-oss-20b", 8, 2), "layers of kind window");
  says(spec_of("deepseek-v4-flash", 8, 2), "layers of kind");
  says(spec_of("glm-4-9b", 8, 2, {"h2o", {}, Budget{.entries = 512}}),
       "expected 1 with method h2o");
  CHECK(why(spec_of("glm-4-9b", 8, 2, {"int8-per-token-head", {}, {}})) == "accepted");
  for (const char* stack : {"sglang", "trtllm", "ideal", "vllm-v0"}) {
    StaticSpec other = spec_of("glm-4-9b", 8, 2);
    other.stack = &find_stack(stack);
    says(other, "it is modelled for vLLM from 0.11 on");
    other.options.context_parallel = 1;
    CHECK(why(other) == "accepted");
  }
  // PyTorch places whole layers on each GPU.
  StaticSpec split = spec_of("glm-4-9b", 8, 2);
  split.stack = &find_stack("hf-sdpa");
  says(split, "expected a divisor of the 1 GPUs");
  says(spec_of("minimax-m3", 8, 2), "layers of kind block-sparse");
  says(spec_of("glm-4-9b", 8, 2, {"int8-per-token-head+prefill=skip-softmax", {}, {}}),
       "expected 1 with method");
  const auto on = [](const char* stack, const char* model, std::int32_t ranks, Dtype cache) {
    StaticSpec spec = spec_of(model, ranks, 2);
    spec.stack = &find_stack(stack);
    spec.kv_dtype = cache;
    return spec;
  };
  says(on("vllm@0.24", "deepseek-v2-lite", 4, Dtype::kFp8E4m3), "latents in 8 bits");
  CHECK(why(on("vllm@0.25", "deepseek-v2-lite", 4, Dtype::kFp8E4m3)) == "accepted");
  CHECK(why(on("vllm@0.24", "deepseek-v2-lite", 4, Dtype::kBf16)) == "accepted");
  says(on("vllm@0.24", "deepseek-v3.2", 8, Dtype::kBf16), "sparse latents");
  says(on("vllm@0.27", "kimi-linear-48b-a3b", 4, Dtype::kBf16), "layers with states");
  CHECK(why(on("vllm@0.28", "kimi-linear-48b-a3b", 4, Dtype::kBf16)) == "accepted");
  const Stack old = find_stack("vllm@0.10");
  StaticSpec early = spec_of("glm-4-9b", 8, 2);
  early.stack = &old;
  says(early, "expected 1 for stack vllm 0.10");
}

TEST_CASE("a service with too little memory runs more requests at a time") {
  const auto run = [](std::int32_t context) {
    auto trace = std::make_shared<RequestTrace>(test::random_trace(5, 60, 50, 30'000, 100));
    ServeSpec service{.llm = &find_llm("deepseek-v2-lite"),
                      .gpu = &find_gpu("L4-24GB"),
                      .stack = &find_stack("vllm"),
                      .weight_dtype = Dtype::kBf16,
                      .kv_dtype = Dtype::kBf16,
                      .tensor_parallel = 4,
                      .options = {.max_model_len = 65'536, .context_parallel = context},
                      .requests = trace};
    return run_serve(service);
  };
  const ServeResult whole = run(1), dealt = run(4);
  CHECK(whole.completed + whole.rejected == 60);
  CHECK(dealt.completed + dealt.rejected == 60);
  CHECK(dealt.block_tokens == 4 * whole.block_tokens);
  CHECK(dealt.blocks * 10 > whole.blocks * 9);
  CHECK(dealt.queue.mean < whole.queue.mean);
  CHECK(dealt.preemptions <= whole.preemptions);
}

}  // namespace
}  // namespace kvsim
