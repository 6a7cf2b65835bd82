// Pools of SGLang and TensorRT-LLM by kind of layer, in hand-solved cases.

#include "sim/memory/groups/engine_pools.hpp"
#include "tests/support/check.hpp"

namespace kvsim {
namespace {

/// Layers with one KV head of 64 in bf16: 256 B per token; `windows` of them have a window of 100.
Llm layers(std::int32_t full, std::int32_t windows, std::int32_t states) {
  Llm llm;
  llm.name = "pools";
  llm.d_model = 64;
  LayerSpec layer;
  layer.attention = {.n_heads = 4, .n_kv_heads = 1, .head_dim = 64, .v_head_dim = 64};
  layer.mlp.d_ff = 64;
  llm.layers.assign(static_cast<std::size_t>(full), layer);
  layer.attention.window = 100;
  llm.layers.insert(llm.layers.end(), static_cast<std::size_t>(windows), layer);
  LayerSpec state;
  // 4 heads of 16 x 16 in fp32 and 3 columns of 2 * 16 + 64 = 96 channels: 4,096 + 576 B.
  state.state = {.kind = StateKind::kGatedDelta,
                 .n_heads = 4,
                 .n_groups = 1,
                 .key_dim = 16,
                 .value_dim = 16,
                 .conv_kernel = 4,
                 .dtype = Dtype::kFp32};
  state.mlp.d_ff = 64;
  llm.layers.insert(llm.layers.end(), static_cast<std::size_t>(states), state);
  return llm;
}

TEST_CASE("SGLang: windows have 0.8 tokens per token of the full layers") {
  // 2 * 256 + 0.8 * 6 * 256 = 1,740.8 B per token of the full layers.
  const EnginePools p = sglang_pools(layers(2, 6, 0), {}, Bytes{17'408'900});
  REQUIRE(p.pools.size() == 2);
  CHECK(p.tokens() == 10'000);
  CHECK(p.pools[1].capacity == 8000);
  CHECK(p.pools[0].bytes() + p.pools[1].bytes() == Bytes{17'408'000});  // of 17,408,900
  // 1,000 tokens: ten requests in the full pool; a window holds 100 of them, eighty in its pool.
  CHECK(p.concurrency(1000) == test::rel(10.0));
  CHECK(p.concurrency(50) == test::rel(160.0));
  CHECK(p.request_bytes(1000) == Bytes{1000 * 512 + 100 * 1536});
}

TEST_CASE("SGLang without pools for windows: all layers hold every token") {
  // 8 * 256 B per token.
  const EnginePools p = sglang_pools(layers(2, 6, 0), {.window_pools = false}, Bytes{20'481'000});
  REQUIRE(p.pools.size() == 1);
  CHECK(p.tokens() == 10'000);
  CHECK(p.pools[0].layers == 8);
  CHECK(p.concurrency(1000) == test::rel(10.0));
  CHECK(p.concurrency(50) == test::rel(200.0));
  CHECK(p.request_bytes(1000) == Bytes{1000 * 2048});
}

TEST_CASE("SGLang: states get 0.9 to 1, and running requests own several") {
  // Three states of 4,672 B: slots of 14,016. 0.9 / 1.9 of the memory holds 100 and one spare slot.
  const Bytes slot{14'016};
  const Bytes memory{static_cast<std::int64_t>(101.5 * 14'016 * 1.9 / 0.9)};
  const EnginePools p = sglang_pools(layers(1, 0, 3), {.state_slots = 5}, memory);
  REQUIRE(p.pools.size() == 2);
  CHECK(p.pools[1].holds_states);
  CHECK(p.pools[1].unit == slot);
  CHECK(p.pools[1].capacity == 100);
  CHECK(p.slots == 5);
  CHECK(p.tokens() == (memory - slot * 100).count() / 256);
  CHECK(p.max_states() == 20);
  CHECK(p.concurrency(1) == test::rel(20.0));  // slots over slots per request
  const EnginePools alone = sglang_pools(layers(1, 0, 3), {.state_slots = 1}, memory);
  CHECK(alone.slots == 1);
  CHECK(alone.max_states() == 100);
  // Without the radix cache, the pool has one slot for each of max_running_requests.
  const EnginePools few =
      sglang_pools(layers(1, 0, 3), {.state_slots = 1, .state_sequences = 40}, memory);
  CHECK(few.max_states() == 40);
  CHECK(few.tokens() == (memory - slot * 40).count() / 256);
  // Slots that exceed the memory leave no tokens.
  CHECK(sglang_pools(layers(1, 0, 3), {.state_slots = 1, .state_sequences = 40}, slot).tokens() ==
        0);
  // The pools never exceed the memory.
  CHECK(p.pools[0].bytes() + p.pools[1].bytes() <= memory);
}

TEST_CASE("TensorRT-LLM: memory is divided in proportion to window times bytes") {
  // For 1,000 tokens, full layers hold 1,000 (512 B each), windows 100 (1,536 B): 512,000 to
  // 153,600.
  const TrtllmPoolSettings settings{.max_num_seqs = 8, .max_model_len = 1000, .block_tokens = 10};
  const Bytes memory{6'656'000};
  const EnginePools p = trtllm_pools(layers(2, 6, 0), settings, memory);
  REQUIRE(p.pools.size() == 2);
  CHECK(p.tokens() == 10'000);
  CHECK(p.pools[1].capacity == 1000);
  CHECK(p.concurrency(1000) == test::rel(10.0));
  // Equal layers share one pool.
  const EnginePools one = trtllm_pools(layers(2, 0, 0), settings, memory);
  CHECK(one.pools.size() == 1);
  CHECK(one.tokens() == 13'000);
  // States are allocated first, one slot per sequence.
  const EnginePools states = trtllm_pools(layers(1, 0, 3), settings, Bytes{8 * 14'016 + 25'600});
  CHECK(states.pools[1].capacity == 8);
  CHECK(states.tokens() == 100);
}

}  // namespace
}  // namespace kvsim
