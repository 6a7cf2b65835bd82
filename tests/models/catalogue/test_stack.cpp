#include "models/gpu/gpu.hpp"
#include "models/llm/catalogue.hpp"
#include "models/stack/engine_defaults.hpp"
#include "models/stack/stack.hpp"
#include "models/units/error.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

TEST_CASE("the ideal stack adds nothing") {
  const Stack& ideal = find_stack("ideal");
  CHECK(ideal.context == Bytes{});
  CHECK(ideal.launch_overhead == Seconds{});
  CHECK(ideal.host_per_layer == Seconds{});
  CHECK(ideal.growth == CacheGrowth::kExact);
  CHECK(ideal.logits == LogitPositions::kLast);
  CHECK(allocator_rounded(ideal, Bytes{513}) == Bytes{513});
}

TEST_CASE("Hugging Face stacks round to 512 B and concatenate") {
  for (const char* name : {"hf-sdpa", "hf-eager", "hf-flash"}) {
    const Stack& stack = find_stack(name);
    CHECK(stack.growth == CacheGrowth::kConcatLayer);
    CHECK(allocator_rounded(stack, Bytes{}) == Bytes{});
    CHECK(allocator_rounded(stack, Bytes{1}) == Bytes{512});
    CHECK(allocator_rounded(stack, Bytes{512}) == Bytes{512});
    CHECK(allocator_rounded(stack, Bytes{513}) == Bytes{1024});
  }
  CHECK(find_stack("hf-eager").attention == AttentionExec::kEager);
  CHECK(find_stack("hf-eager").logits_fp32);
}

TEST_CASE("every constant that differs from the ideal names its source") {
  const Stack& ideal = find_stack("ideal");
  for (const Stack& s : builtin_stacks()) {
    INFO(s.name);
    const auto sourced = [&](const char* key, bool differs) {
      INFO(key);
      CHECK((!differs || s.sources.contains(key)));
    };
    sourced("growth", s.growth != ideal.growth);
    sourced("attention", true);
    sourced("logits", s.logits != ideal.logits);
    sourced("logits_fp32", s.logits_fp32 != ideal.logits_fp32);
    sourced("expands_kv_heads", s.expands_kv_heads != ideal.expands_kv_heads);
    sourced("rounds_allocations", s.rounds_allocations != ideal.rounds_allocations);
    sourced("keeps_inputs", s.keeps_inputs != ideal.keeps_inputs);
    sourced("splits_keys", s.splits_keys != ideal.splits_keys);
    sourced("host_weights", s.host_weights != ideal.host_weights);
    sourced("overlaps_weights", s.overlaps_weights != ideal.overlaps_weights);
    sourced("splits_layers", s.splits_layers != ideal.splits_layers);
    sourced("norm_launches", s.norm_launches != ideal.norm_launches);
    sourced("rope_launches", s.rope_launches != ideal.rope_launches);
    sourced("context", s.context != ideal.context);
    sourced("usable_fraction", s.usable_fraction != ideal.usable_fraction);
    sourced("fraction_of", s.fraction_of != ideal.fraction_of);
    sourced("launch_overhead", s.launch_overhead != ideal.launch_overhead);
    sourced("host_per_layer", s.host_per_layer != ideal.host_per_layer);
    sourced("eager_per_layer", s.eager_per_layer != ideal.eager_per_layer);
    sourced("host_per_step", s.host_per_step != ideal.host_per_step);
    sourced("host_per_launch", s.host_per_launch != ideal.host_per_launch);
    sourced("block_tokens", s.block_tokens != ideal.block_tokens);
    sourced("prefill_chunk", s.prefill_chunk != ideal.prefill_chunk);
    sourced("max_num_seqs", s.max_num_seqs != ideal.max_num_seqs);
    sourced("fused_projections", s.fused_projections != ideal.fused_projections);
    sourced("full_causal_mask", s.full_causal_mask != ideal.full_causal_mask);
    sourced("attends_allocated", s.attends_allocated != ideal.attends_allocated);
    sourced("score_passes", s.score_passes != ideal.score_passes);
    sourced("between_per_sequence", s.inter_step_per_sequence != ideal.inter_step_per_sequence);
    sourced("between_steps", s.inter_step_overhead != ideal.inter_step_overhead);
    sourced("sampler_bytes", s.sampler_bytes != ideal.sampler_bytes);
    sourced("loads_vision", s.loads_vision);
    sourced("graphs", s.graphs != ideal.graphs);
    sourced("communication", s.communication != ideal.communication);
    sourced("collective_latency", s.collective_latency != ideal.collective_latency);
    sourced("overlap", s.overlap != ideal.overlap);
    sourced("reached", !s.reached.empty());
  }
}

TEST_CASE("without graphs the host launches each layer's kernels") {
  const EngineSite site{&find_gpu("H100-80GB-SXM"), &find_llm("llama-3.1-8b"), 1};
  const Stack& vllm = find_stack("vllm");
  const Stack graphs = with_options(vllm, {}, site);
  const Stack eager = with_options(vllm, {.cuda_graphs = false}, site);
  CHECK(graphs.host_per_layer == vllm.host_per_layer);
  CHECK(eager.host_per_layer == vllm.eager_per_layer);
  CHECK(eager.host_per_layer > graphs.host_per_layer);
  // A stack without a value for eager mode is unchanged.
  const Stack& lmdeploy = find_stack("lmdeploy");
  CHECK(with_options(lmdeploy, {.cuda_graphs = false}, site).host_per_layer ==
        lmdeploy.host_per_layer);
}

TEST_CASE("the error for an unknown stack suggests the nearest one") {
  try {
    (void)find_stack("hf-sdpaa");
    FAIL("no complaint");
  } catch (const InputError& error) {
    CHECK(std::string{error.what()}.starts_with(
        "unknown stack \"hf-sdpaa\"; did you mean \"hf-sdpa\"?"));
  }
}

TEST_CASE("a profile states its differences from the base with reasons") {
  const auto read = [](const char* text) {
    return read_stack(Field::parse(text, "s.json"), "mine", builtin_stacks());
  };
  const Stack& base = find_stack("hf-sdpa");
  const Stack mine = read(R"({"summary": "x", "extends": "hf-sdpa", "norm_launches": 1,
                              "host_per_layer": "1 ms", "sources": {"norm_launches": "fused"}})");
  CHECK(mine.name == "mine");
  CHECK(mine.norm_launches == 1);
  CHECK(mine.rope_launches == base.rope_launches);
  CHECK(mine.growth == base.growth);
  CHECK(mine.sources.at("norm_launches") == "fused");
  CHECK(mine.sources.at("growth") == base.sources.at("growth"));
  CHECK_FALSE(mine.sources.contains("host_per_layer"));  // the base's source does not mention 1 ms
  CHECK_THROWS_AS((void)read(R"({"summary": "x", "extends": "no-such", "sources": {}})"),
                  InputError);
}

TEST_CASE("a profile is checked key by key") {
  CHECK_THROWS_AS((void)read_stack(Field::parse(R"({"summary": "x"})", "s.json"), "s"), InputError);
  CHECK_THROWS_AS((void)read_stack(Field::parse(R"({"sumary": "x"})", "s.json"), "s"), InputError);
}

}  // namespace
}  // namespace kvsim
