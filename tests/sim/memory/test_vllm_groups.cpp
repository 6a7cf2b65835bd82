// Groups of layers as in vLLM, and the capacities printed in its logs.

#include <cmath>
#include <memory>
#include <string>

#include "models/llm/weight_format.hpp"
#include "models/methods/method.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/method_by_prompt.hpp"
#include "sim/memory/groups/vllm_groups.hpp"
#include "tests/support/check.hpp"
#include "tests/support/files.hpp"

namespace kvsim {
namespace {

using test::has;
using test::rel;

void add_layers(Llm& llm, std::int32_t n, const LayerSpec& layer) {
  llm.layers.insert(llm.layers.end(), static_cast<std::size_t>(n), layer);
}
LayerSpec full_layer(std::int32_t kv_heads, std::int32_t head_dim) {
  LayerSpec layer;
  layer.attention = {.n_heads = 4 * kv_heads,
                     .n_kv_heads = kv_heads,
                     .head_dim = head_dim,
                     .v_head_dim = head_dim};
  layer.mlp.d_ff = 64;
  return layer;
}
/// Gated delta nets with 16 key heads and `heads` value heads of 128, in fp32.
LayerSpec delta_layer(std::int32_t heads) {
  LayerSpec layer;
  layer.state = {.kind = StateKind::kGatedDelta,
                 .n_heads = heads,
                 .n_groups = 16,
                 .key_dim = 128,
                 .value_dim = 128,
                 .conv_kernel = 4,
                 .dtype = Dtype::kFp32};
  layer.mlp.d_ff = 64;
  return layer;
}
/// Three delta nets for each full layer: the shape of Qwen3.5-27B with 16 and 4 heads.
Llm hybrid(std::int32_t full, std::int32_t kv_heads, std::int32_t value_heads) {
  Llm llm;
  llm.name = "hybrid";
  llm.d_model = 64;
  add_layers(llm, full, full_layer(kv_heads, 256));
  add_layers(llm, 3 * full, delta_layer(value_heads));
  return llm;
}
Bytes gib(double n) { return Bytes{static_cast<std::int64_t>(n * 1024 * 1024 * 1024)}; }

TEST_CASE("attention blocks have the size of a recurrent state") {
  // 48 states of 128 x 128 in fp32 and 3 columns of 10,240 channels: 3,207,168 B. A full layer uses
  // 4,096 B per token in bf16: 783 tokens, rounded up to 784, a multiple of 16. In fp8: 1,566,
  // 1,568.
  const Llm llm = hybrid(16, 4, 48);
  const VllmGroupSettings bf16{.max_model_len = 32768, .max_num_batched_tokens = 16384};
  const VllmGroups wide = vllm_groups(llm, bf16);
  CHECK(wide.block_tokens == 784);
  REQUIRE(wide.groups.size() == 4);
  CHECK(wide.groups[0].kind == "full");
  CHECK(wide.groups[0].layers == 16);
  CHECK(wide.groups[3].kind == "gated-delta");
  CHECK(wide.block_id == Bytes{784LL * 4096 * 16});
  // A request uses 42 blocks of 784 tokens, and a written and a retained state for each of 3
  // groups.
  CHECK(wide.request_blocks == 42 + 3 * 2);
  VllmGroupSettings none = bf16;
  none.keeps_states = false;
  // A start logged 290,864 tokens and 33.04 requests for 1,487 blocks (vLLM 0.19).
  const VllmGroups alone = vllm_groups(llm, none);
  CHECK(alone.request_blocks == 45);
  const VllmCapacity logged = vllm_capacity(alone, alone.block_id * 1487, 32768);
  CHECK(logged.blocks == 1487);
  CHECK(logged.tokens_before == 290'864);
  CHECK(logged.concurrency == rel(33.04, 2e-4));

  const VllmGroupSettings fp8{.kv_dtype = Dtype::kFp8E4m3, .max_model_len = 196608};
  const VllmGroups narrow = vllm_groups(llm, fp8);
  CHECK(narrow.block_tokens == 1568);
  // 7.33 GiB are 153 blocks, 126 + 3 * 2 of them per request: 227,886 tokens, as logged.
  const VllmCapacity capacity = vllm_capacity(narrow, gib(7.33), 196608);
  CHECK(capacity.blocks == 153);
  CHECK(capacity.tokens == 227'886);
  // Two ranks halve both sides.
  CHECK(vllm_groups(tensor_shard(hybrid(16, 4, 48), 2), fp8).block_tokens == 1568);
}

TEST_CASE("a draft head joins the full layers and widens the states") {
  // Three draft tokens: 3 more columns of 10,240 channels, 3,268,608 B: 1,600 tokens of 2,048 B. 17
  // full layers; 48 states distributed over three groups of 16, each with an empty one.
  const VllmGroupSettings settings{
      .kv_dtype = Dtype::kFp8E4m3, .max_model_len = 131072, .draft_tokens = 3, .draft_layers = 1};
  const VllmGroups groups = vllm_groups(hybrid(16, 4, 48), settings);
  CHECK(groups.block_tokens == 1600);
  REQUIRE(groups.groups.size() == 4);
  CHECK(groups.groups[0].layers == 17);
  CHECK(groups.groups[3].layers == 16);
  CHECK(groups.groups[3].padding == 1);
  CHECK(groups.request_blocks == 82 + 3 * (2 + 3));
  // 11.75 GiB: 226 blocks, 305,384 tokens, as logged.
  CHECK(vllm_capacity(groups, gib(11.75), 131072).tokens == 305'384);
}

TEST_CASE("ten full layers with two heads: a 35B model's log") {
  // 32 states in fp32 and 3 columns of 2 * 16 * 128 + 32 * 128 = 8,192 channels: 2,097,152 + 49,152
  // = 2,146,304 B, 2,096 tokens of 1,024 B. 299 blocks, 63 + 3 * 2 of them per request, as logged.
  const VllmGroupSettings settings{.kv_dtype = Dtype::kFp8E4m3, .max_model_len = 131072};
  const VllmGroups groups = vllm_groups(hybrid(10, 2, 32), settings);
  CHECK(groups.block_tokens == 2096);
  const VllmCapacity capacity = vllm_capacity(groups, gib(5.98), 131072);
  CHECK(capacity.blocks == 299);
  CHECK(capacity.tokens == 567'978);
  CHECK(capacity.concurrency == rel(4.333, 1e-3));
}

TEST_CASE("layers that differ only in their pages form one group") {
  // GLM-5: 78 latents of 1,152 B and 78 index keys of 132 B, in blocks of 64: 100,152 B per token.
  Llm llm;
  llm.name = "dsa";
  llm.d_model = 64;
  LayerSpec layer;
  layer.mlp.d_ff = 64;
  layer.attention = {.n_heads = 64,
                     .n_kv_heads = 64,
                     .head_dim = 256,
                     .v_head_dim = 256,
                     .kv_lora_rank = 512,
                     .q_lora_rank = 2048,
                     .rope_head_dim = 64,
                     .index = {.n_heads = 32, .head_dim = 128, .top_k = 2048}};
  add_layers(llm, 78, layer);
  VllmGroupSettings settings{.max_model_len = 202752};
  const VllmGroups groups = vllm_groups(llm, settings);
  CHECK(groups.groups.size() == 1);
  CHECK(groups.block_id == Bytes{64LL * 100'152});
  // Logged: 34.86 GiB, 373,696 tokens, 1.84 requests; the memory is rounded to 0.005 GiB.
  const VllmCapacity capacity = vllm_capacity(groups, gib(34.86), 202752);
  CHECK(std::abs(capacity.tokens - 373'696) <= 2 * 64);
  CHECK(capacity.concurrency == rel(1.84, 3e-3));
  // Eight ranks that share the tokens hold an eighth each.
  settings.context_parallel = 8;
  const VllmGroups shared = vllm_groups(llm, settings);
  CHECK(shared.request_blocks == 396);  // ceil(202,752 / 8 / 64)
  CHECK(vllm_capacity(shared, gib(34.86), 202752).tokens > 7 * capacity.tokens);
}

TEST_CASE("windows also hold a step's tokens and shorter entries get longer blocks") {
  // Equal pages: 5 windows and 1 full layer of 2 x 64 elements, 512 B per token.
  Llm llm;
  llm.name = "windows";
  llm.d_model = 64;
  LayerSpec window = full_layer(2, 64);
  window.attention.window = 128;
  add_layers(llm, 10, window);
  add_layers(llm, 2, full_layer(2, 64));
  VllmGroupSettings settings{.max_model_len = 10'000, .max_num_batched_tokens = 1000};
  // Two steps are in flight: ceil((127 + 2000) / 16) + 1 blocks.
  CHECK(vllm_groups(llm, settings).groups[0].request_blocks == 134);
  settings.release = {0, 25, 0};
  const VllmGroups groups = vllm_groups(llm, settings);
  REQUIRE(groups.groups.size() == 6);  // of two layers each
  CHECK(groups.groups[0].kind == "window");
  // ceil((127 + 1000) / 16) + 1 blocks for each of five windows, 625 for the full layers.
  CHECK(groups.groups[0].request_blocks == 72);
  CHECK(groups.request_blocks == 5 * 72 + 625);
  CHECK(groups.block_id == Bytes{2 * 16 * 512});

  // A full layer with a quarter of the entry: blocks of 64.
  Llm narrow = llm;
  narrow.layers.resize(10);
  add_layers(narrow, 2, full_layer(1, 32));
  const VllmGroups longer = vllm_groups(narrow, settings);
  CHECK(longer.block_tokens == 64);
  // Three eighths cannot be equalised.
  narrow.layers.resize(10);
  add_layers(narrow, 2, full_layer(1, 48));
  CHECK_THROWS_AS((void)vllm_groups(narrow, settings), InputError);
}

TEST_CASE("nearly equal classes are padded to the larger one") {
  // 10 windows and 8 full layers: 10 is less than 1.5 times 8, so both groups have 10.
  Llm llm;
  llm.name = "even";
  llm.d_model = 64;
  LayerSpec window = full_layer(2, 64);
  window.attention.window = 128;
  add_layers(llm, 10, window);
  add_layers(llm, 8, full_layer(2, 64));
  const VllmGroups groups = vllm_groups(llm, {.max_model_len = 1000});
  REQUIRE(groups.groups.size() == 2);
  CHECK(groups.groups[1].layers == 8);
  CHECK(groups.groups[1].padding == 2);
  CHECK(groups.block_id == Bytes{10 * 16 * 512});
}

/// Layers of DeepSeek-V4: at least two with only windows, then entries for 4 and 128 tokens
/// alternately.
Llm compressed(std::int32_t windows, std::int32_t narrow, std::int32_t wide) {
  Llm llm;
  llm.name = "v4";
  llm.d_model = 64;
  LayerSpec layer;
  layer.attention = {.n_heads = 8,
                     .n_kv_heads = 1,
                     .head_dim = 512,
                     .v_head_dim = 512,
                     .window = 128,
                     .q_lora_rank = 64,
                     .rope_head_dim = 64,
                     .o_groups = 8,
                     .o_lora_rank = 64};
  add_layers(llm, windows, layer);
  layer.attention.ratio = 128;
  add_layers(llm, wide, layer);
  layer.attention.ratio = 4;
  layer.attention.index = {.n_heads = 64, .head_dim = 128, .top_k = 512};
  add_layers(llm, narrow, layer);
  return llm;
}

TEST_CASE("compressed entries are packed, by release") {
  // Pages in multiples of 576 B: windows and entries for 4 tokens 64 x 584 B -> 37,440; entries for
  // 128 tokens 2 x 584 -> 1,728; index keys 64 x 132 -> 8,640; states 32,768 -> 32,832 and 8,192 ->
  // 8,640. Tuples 21, 43, 21 and 20: groups of 22, so that windows form two.
  const Llm flash = compressed(2, 21, 20);
  VllmGroupSettings settings{.kv_dtype = Dtype::kFp8E4m3, .max_model_len = 256'000};
  settings.release = {0, 22, 1};
  const VllmGroups before = vllm_groups(flash, settings);
  REQUIRE(before.groups.size() == 5);
  CHECK(before.groups[0].layers == 62);
  CHECK(before.groups[1].layers == 22);
  CHECK(before.groups[2].layers == 21);
  CHECK(before.groups[2].padding == 1);
  CHECK(before.block_id == Bytes{22 * (37'440 + 8'640 + 1'728)});
  // A start of 0.22.1 logged 37.93 GiB, 2,497,693 tokens and 9.76 requests: 38,724 blocks, 3,969 of
  // them per request of 256,000 tokens in steps of 8,192.
  CHECK(before.request_blocks == 3969);
  const VllmCapacity logged = capacity_of_blocks(before, 38'724, 256'000);
  CHECK(logged.tokens == 2'497'693);
  CHECK(vllm_capacity(before, gib(37.93), 256'000).tokens == rel(2'497'693.0, 2e-4));

  // The number of slots of a page size is the maximum over the groups; two steps are in flight. A
  // start of 0.26.0 with a draft layer logged 7.71 GiB and 150,992 tokens.
  settings.release = {0, 26, 0};
  settings.max_model_len = 121'344;
  settings.draft_layers = 1;
  const VllmGroups slots = vllm_groups(flash, settings);
  CHECK(slots.block_id == Bytes{22 * 37'440 + 21 * 8'640 + 20 * 1'728});
  CHECK(slots.request_blocks == 6401);
  CHECK(capacity_of_blocks(slots, 7965, 121'344).tokens == 150'992);

  // Dense pages: the 62 of the full group are the largest number.
  settings.release = {0, 27, 0};
  const VllmGroups dense = vllm_groups(flash, settings);
  CHECK(dense.block_id == Bytes{21 * 37'440 + 21 * 8'640 + 20 * 1'728});
  CHECK(dense.request_blocks == 474 + 2 * 259 + 4099 + 2065);

  // DeepSeek-V4-Pro: 1,473,408 B per block id before PR 48993, according to its text.
  settings.release = {0, 26, 0};
  settings.draft_layers = 0;
  CHECK(vllm_groups(compressed(0, 30, 31), settings).block_id == Bytes{1'473'408});
}

TEST_CASE("Mamba layers keep a state after each block, delta nets at the ends of steps") {
  // 64 heads of 64 x 128 in fp32 and 3 columns of 64 * 64 + 2 * 8 * 128 channels: 2,134,016 B,
  // 2,096 tokens of 1,024 B.
  Llm llm;
  llm.name = "mamba";
  llm.d_model = 64;
  add_layers(llm, 6, full_layer(2, 128));
  LayerSpec mamba;
  mamba.state = {.kind = StateKind::kMamba2,
                 .n_heads = 64,
                 .n_groups = 8,
                 .key_dim = 128,
                 .value_dim = 64,
                 .conv_kernel = 4,
                 .dtype = Dtype::kFp32};
  mamba.mlp.d_ff = 64;
  add_layers(llm, 12, mamba);
  VllmGroupSettings settings{.max_model_len = 209'600};
  const VllmGroups all = vllm_groups(llm, settings);
  REQUIRE(all.groups.size() == 3);
  CHECK(all.block_tokens == 2096);
  CHECK(all.has_states());
  CHECK(all.request_blocks == 3 * 100);
  settings.draft_tokens = 1;  // then only at the ends of steps; one more column, 2,112 tokens
  CHECK(vllm_groups(llm, settings).request_blocks == 100 + 2 * 3);
  settings.draft_tokens = 0;
  settings.keeps_states = false;
  CHECK(vllm_groups(llm, settings).request_blocks == 100 + 2 * 1);
}

TEST_CASE("the longest request fits, and one token more does not") {
  VllmGroupSettings settings{.kv_dtype = Dtype::kFp8E4m3, .max_model_len = 262'144};
  const Llm llm = hybrid(16, 4, 48);
  // 100 blocks: 94 for full layers, and two states in each of three groups.
  CHECK(longest_request(llm, settings, 100) == 94 * 1568);
  CHECK(longest_request(llm, settings, 1) == 0);
  settings.max_model_len = 1000;
  CHECK(longest_request(llm, settings, 100) == 1000);
}

TEST_CASE("formats with scales for each head") {
  // Four heads of 256 in 4 bits with two fp32 scales: 1,056 B per token, and blocks of 1,552 tokens
  // with states of 1,634,304 B in bf16, 3,040 in fp32, as logged.
  VllmGroupSettings settings{.max_model_len = 49'152};
  std::shared_ptr<const Method> format;
  const auto store_in = [&](const Llm& llm, const char* name) {
    format = make_method({name, {}, {}}, 1, method_site(llm, Dtype::kBf16));
    settings.format = format.get();
  };
  store_in(hybrid(16, 4, 48), "int4-per-token-head");
  settings.state_dtype = Dtype::kBf16;
  const VllmGroups narrow = vllm_groups(hybrid(16, 4, 48), settings);
  CHECK(narrow.block_tokens == 1552);
  CHECK(capacity_of_blocks(narrow, 86, 49'152).tokens == 111'238);
  settings.state_dtype.reset();
  CHECK(vllm_groups(hybrid(16, 4, 48), settings).block_tokens == 3040);
  // Two heads of 256: blocks that divide the sizes given in vLLM's PR 39931.
  const auto block = [&](const char* name) {
    const Llm llm = hybrid(10, 2, 32);
    store_in(llm, name);
    return vllm_groups(llm, settings).block_tokens;
  };
  CHECK(1'273'280 % block("turboquant-k8v4") == 0);
  CHECK(1'884'160 % block("turboquant-4bit-nc") == 0);
  CHECK(2'144'448 % block("turboquant-k3v4-nc") == 0);
  CHECK(2'495'040 % block("turboquant-3bit-nc") == 0);
}

}  // namespace
}  // namespace kvsim
