// Runs and services whose prompts are split over groups of GPUs (prefill context parallelism).

#include <algorithm>
#include <memory>
#include <string>

#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/methods/method.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/fit_range.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/serve/service/serve_run.hpp"
#include "tests/support/check.hpp"
#include "tests/support/serving.hpp"

namespace kvsim {
namespace {

StaticSpec spec_of(const char* model, std::int32_t ranks, std::int32_t parts,
                   const MethodSpec& method = {"full", {}, {}}) {
  const Llm& llm = find_llm(model);
  return {.llm = &llm,
          .gpu = &find_gpu("H200-141GB-SXM"),
          .stack = &find_stack("vllm"),
          .method = make_method(method, 16384, method_site(llm, Dtype::kBf16)),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16,
          .batch = 2,
          .prompt_tokens = 16380,
          .output_tokens = 4,
          .tensor_parallel = ranks,
          .options = {.prefill_context = parts}};
}

ServeSpec service_of(std::int32_t parts) {
  return {.llm = &find_llm("deepseek-v2-lite"),
          .gpu = &find_gpu("H200-141GB-SXM"),
          .stack = &find_stack("vllm"),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16,
          .tensor_parallel = 2,
          .options = {.max_model_len = 65'536, .prefill_context = parts},
          .requests = std::make_shared<RequestTrace>(test::random_trace(5, 60, 50, 30'000, 100))};
}

template <class Spec, class Run>
std::string why(const Spec& spec, Run&& run) {
  try {
    (void)run(spec);
  } catch (const InputError& e) {
    return e.what();
  }
  return "accepted";
}

TEST_CASE("a split prompt takes less time and the same cache") {
  const StaticResult whole = run_static(spec_of("deepseek-v2-lite", 1, 1));
  const StaticResult split = run_static(spec_of("deepseek-v2-lite", 1, 4));
  REQUIRE(whole.prefill_time);
  REQUIRE(split.prefill_time);
  CHECK(split.prefill_time->count() < whole.prefill_time->count() / 2);
  CHECK(split.kv_bytes == whole.kv_bytes);
  REQUIRE(split.startup);
  CHECK(split.startup->weights < whole.startup->weights);
  // A quarter of the experts leaves memory for entries.
  CHECK(split.startup->tokens > whole.startup->tokens);
  const auto said = [](const std::string& note) {
    return note.find("each of 4 groups of GPUs") != std::string::npos;
  };
  CHECK(std::any_of(split.notes.begin(), split.notes.end(), said));
  CHECK(std::none_of(whole.notes.begin(), whole.notes.end(), said));
  CHECK(spec_of("deepseek-v2-lite", 2, 4).gpus() == 8);
}

TEST_CASE("the GPUs of all groups count, for memory and for the fewest that hold it") {
  // One GPU in each group exchanges data with seven others, as under tensor parallelism.
  const auto peak = [](std::int32_t ranks, std::int32_t parts) {
    StaticSpec spec = spec_of("deepseek-v2-lite", ranks, parts);
    spec.options.expert_parallel = ranks * parts;
    const StaticResult result = run_static(spec, {.intervals = true});
    REQUIRE(result.intervals);
    REQUIRE(result.intervals->peak);
    return static_cast<double>(result.intervals->peak->high.count() - result.peak_hbm.count());
  };
  CHECK(peak(1, 8) < 2 * peak(2, 4));
  const FitRange fewest = fit_range(spec_of("deepseek-v2-lite", 2, 4), std::nullopt);
  REQUIRE(fewest.gpus);
  CHECK(*fewest.gpus == 4);  // one GPU in each group is enough
}

TEST_CASE("prompts that engines do not split are refused with the reason") {
  const auto of = [](const StaticSpec& spec) {
    return why(spec, [](const StaticSpec& s) { return run_static(s); });
  };
  const auto says = [&](const StaticSpec& spec, const char* words) {
    CHECK_MESSAGE(of(spec).find(words) != std::string::npos, of(spec));
  };
  CHECK(of(spec_of("deepseek-v2-lite", 2, 4)) == "accepted");
  CHECK(of(spec_of("deepseek-v3.2", 2, 4)) == "accepted");
  says(spec_of("llama-3.1-8b", 2, 2), "models that cache latents in all layers");
  says(spec_of("kimi-linear-48b-a3b", 2, 2), "models that cache latents in all layers");
  says(spec_of("deepseek-v2-lite", 2, 2, {"h2o", {}, Budget{.entries = 512}}),
       "expected 1 with method h2o");
  says(spec_of("deepseek-v2-lite", 2, 8), "8 groups of 2 GPUs do not fit into one node of 8");
  says(spec_of("deepseek-v2-lite", 1, 3), "3 GPUs cannot share the 1408 columns of an expert");
  StaticSpec experts = spec_of("deepseek-v2-lite", 2, 2);
  experts.options.expert_parallel = 4;
  CHECK(of(experts) == "accepted");
  experts.options.expert_parallel = 2;
  says(experts, "expected 1, or the 4 GPUs that prompts are split over, got 2");
  StaticSpec dealt = spec_of("deepseek-v2-lite", 2, 2);
  dealt.options.context_parallel = 2;
  says(dealt, "they are not modelled together");
  StaticSpec streamed = spec_of("deepseek-v2-lite", 2, 2);
  streamed.options.host_weights = 0.5;
  says(streamed, "expected 1 with host_weights");
  for (const char* stack : {"sglang", "trtllm", "ideal", "hf-sdpa", "vllm@0.29"}) {
    const Stack one = find_stack(stack);
    StaticSpec other = spec_of("deepseek-v2-lite", 1, 2);
    other.stack = &one;
    says(other, "it is modelled for vLLM from 0.30 on");
  }
}

TEST_CASE("a service that splits prompts answers sooner on more GPUs") {
  const ServeSpec one = service_of(1), four = service_of(4);
  CHECK(service_gpus(one) == 2);
  CHECK(service_gpus(four) == 8);
  const ServeResult whole = run_serve(one), split = run_serve(four);
  CHECK(whole.completed == 60);
  CHECK(split.completed == 60);
  CHECK(split.ttft.mean < whole.ttft.mean);
  const auto of = [](const ServeSpec& spec) {
    return why(spec, [](const ServeSpec& s) { return run_serve(s); });
  };
  ServeSpec stages = service_of(2);
  stages.pipeline_parallel = 2;
  CHECK(of(stages).find("expected 1 with pipeline_parallel") != std::string::npos);
  ServeSpec tiers = service_of(2);
  tiers.host_memory = Bytes{1 << 30};
  CHECK(of(tiers).find("expected 1 with host_memory") != std::string::npos);
  ServeSpec disks = service_of(2);
  disks.nvme = {Bytes{1 << 30}, BytesPerSecond{1e9}, BytesPerSecond{1e9}};
  CHECK(of(disks).find("expected 1 with nvme") != std::string::npos);
  ServeSpec apart = service_of(2);
  apart.cluster.prefill_replicas = 1;
  CHECK(of(apart).find("expected 1 with prefill_replicas") != std::string::npos);
  ServeSpec guesses = service_of(2);
  guesses.speculation.proposer = Proposer::kNgram;
  CHECK(of(guesses).find("expected 1 with speculation") != std::string::npos);
}

}  // namespace
}  // namespace kvsim
