// Operators of layers with states, indexes, windows and compressed entries: hand-solved, and
// compared with the entries that `kvsim show model` reports as held and read.

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "models/cost/cache_rows.hpp"
#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/step_graphs.hpp"
#include "models/cost/rates/roofline.hpp"
#include "models/llm/cache_summary.hpp"
#include "models/llm/catalogue.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "models/units/error.hpp"
#include "tests/support/basic_methods.hpp"
#include "tests/support/check.hpp"
#include "tests/support/machines.hpp"

namespace kvsim {
namespace {

using namespace test;  // NOLINT: test helpers

const std::vector<std::string> kHybrids{"Qwen3-Next-80B-A3B",
                                        "Qwen3.5-27B",
                                        "Kimi-Linear-48B-A3B",
                                        "Kimi-K3",
                                        "Nemotron-H-56B",
                                        "Jamba-1.5-Mini",
                                        "Falcon-H1-34B",
                                        "Granite-4.0-H-Small",
                                        "DeepSeek-V3.2",
                                        "GLM-5",
                                        "GLM-5.2",
                                        "DeepSeek-V4-Flash",
                                        "MiniMax-M3",
                                        "Llama-4-Scout",
                                        "Gemma-4-26B-A4B",
                                        "MiMo-V2.5"};

LayerSpec gated_delta() {
  LayerSpec layer;
  layer.mlp.d_ff = 32;
  layer.state = {.kind = StateKind::kGatedDelta,
                 .n_heads = 4,
                 .n_groups = 2,
                 .key_dim = 8,
                 .value_dim = 16,
                 .conv_kernel = 4,
                 .dtype = Dtype::kFp32};
  return layer;
}

CostInput input(const Llm& llm, const Method& method, std::string_view stack = "ideal") {
  return {.llm = &llm,
          .method = &method,
          .stack = &find_stack(stack),
          .weight_dtype = Dtype::kBf16,
          .kv_dtype = Dtype::kBf16};
}

/// The step that brings each layer of a full cache to `tokens` tokens.
DecodeState moment(const CostInput& in, std::int32_t layer, std::int64_t tokens) {
  return decode_moment(in, layer, 1, tokens, held_entries(in, layer, 1, tokens - 1));
}

/// Bytes of caches that a decode step reads, taken from the operators of its layers.
double cache_read(const CostInput& in, std::int64_t tokens) {
  double sum = 0;
  for (std::int32_t l = 0; l < in.llm->n_layers(); ++l) {
    const LayerSpec& layer = in.llm->layers[static_cast<std::size_t>(l)];
    const NewTokens span{.tokens = 1, .before = static_cast<double>(tokens - 1)};
    for (const MixerOp& op : mixer_operators(layer, span)) sum += op.cache_read;
    const AttentionWork work = attention_work(layer.attention);
    const OpGraph graph = decode_layer(in, l, moment(in, l, tokens));
    for (OpIndex i = 0; i < graph.size(); ++i) {
      const Op& op = graph.op(i);
      if (op.family != OpFamily::kDecodeAttention && op.family != OpFamily::kSparseAttention) {
        continue;
      }
      const double width = work.rows > 0 ? layer.attention.head_dim : work.prompt_score_width;
      sum += op.bytes_read - 2.0 * layer.attention.n_heads * width;
    }
  }
  return sum;
}

TEST_CASE("a delta rule, solved by hand") {
  const LayerSpec layer = gated_delta();
  // 4 states of 16 x 8 in fp32; 3 columns of 2 * 2 * 8 + 4 * 16 = 96 channels in 16 bits.
  const double state = 4 * 128 * 4 + 3 * 96 * 2;
  const auto step = mixer_operators(layer, {.tokens = 1, .before = 99});
  REQUIRE(step.size() == 1);
  CHECK(step[0].flops == 4 * 7 * 128);
  CHECK(step[0].cache_read == state);
  CHECK(step[0].cache_written == state);
  // A draft of three tokens and one more: each token stores a state, and one state is read.
  const auto verified = mixer_operators(layer, {.tokens = 4, .before = 99});
  CHECK(verified[0].flops == 4 * step[0].flops);
  CHECK(verified[0].cache_read == state);
  CHECK(verified[0].cache_written == 4 * state);
  // 130 tokens of a prompt are three chunks of 64.
  const auto prompt = mixer_operators(layer, {.tokens = 130, .before = 0, .decodes = false});
  CHECK(prompt[0].flops == rel(130 * 4 * (6 * 128 + 64 * (6 * 8 + 4 * 16) + 64 * 64 / 3.0), 1e-12));
  CHECK(prompt[0].cache_read == 3 * state);
}

TEST_CASE("an index, solved by hand") {
  LayerSpec layer;
  layer.attention = {.n_heads = 4,
                     .n_kv_heads = 4,
                     .head_dim = 24,
                     .v_head_dim = 16,
                     .kv_lora_rank = 512,
                     .q_lora_rank = 100,
                     .rope_head_dim = 8,
                     .index = {.n_heads = 3, .head_dim = 128, .top_k = 50}};
  const LayerKind& kind = attention_kind(layer.attention);
  CHECK(kind.visited(layer, 40) == 40);
  CHECK(kind.visited(layer, 400) == 50);
  CHECK(kind.pairs(layer, 40) == 800);
  CHECK(kind.pairs(layer, 400) == 50 * 400 - 50 * 50 / 2);
  // 3 heads score 1,000 keys of 128 + 4 bytes: products, ReLU and weighted sum.
  const auto ops = mixer_operators(layer, {.tokens = 1, .before = 999});
  REQUIRE(ops.size() == 2);
  CHECK(ops[0].flops == 3 * 1000 * (2 * 128 + 2));
  CHECK(ops[0].cache_read == 1000 * 132);
  // The number of scores of a prompt is half the square of its length, per head.
  const auto prompt = mixer_operators(layer, {.tokens = 1000, .before = 0, .decodes = false});
  CHECK(prompt[0].flops == 3 * 500'000.0 * (2 * 128 + 2));
  layer.attention.index.is_borrowed = true;
  CHECK(mixer_operators(layer, {.tokens = 1, .before = 999}).empty());
}

TEST_CASE("compressed entries, chunks and shared layers, solved by hand") {
  LayerSpec layer;
  layer.attention = {.n_heads = 8,
                     .n_kv_heads = 1,
                     .head_dim = 512,
                     .v_head_dim = 512,
                     .window = 128,
                     .q_lora_rank = 64,
                     .rope_head_dim = 64,
                     .ratio = 4,
                     .o_groups = 2,
                     .o_lora_rank = 16};
  layer.attention.index = {.n_heads = 2, .head_dim = 128, .top_k = 100};
  const LayerKind& kind = attention_kind(layer.attention);
  CHECK(kind.visited(layer, 100) == 100 + 25);
  CHECK(kind.visited(layer, 403) == 128 + 100);
  CHECK(kind.visited(layer, 4000) == 128 + 100);
  // Token t attends to t / 4 entries, at most 100, and to at most 128 tokens of the window.
  CHECK(kind.pairs(layer, 4000) == (128 * 4000 - 8192) + (400 * 4000 - 80'000) / 4);
  layer.attention.index = {};
  CHECK(kind.visited(layer, 4000) == 128 + 1000);

  LayerSpec chunked;
  chunked.attention = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .v_head_dim = 8, .chunk = 100};
  CHECK(attention_kind(chunked.attention).pairs(chunked, 250) == 5000 + 5000 + 1250);
}

TEST_CASE("a decode step reads the bytes in the model's summary") {
  const FullMethod full;
  for (const std::string& name : kHybrids) {
    INFO(name);
    const Llm& llm = find_llm(name);
    for (const Dtype kv : {Dtype::kBf16, Dtype::kFp8E4m3}) {
      CostInput in = input(llm, full);
      in.kv_dtype = kv;
      for (const std::int64_t tokens : {2, 100, 5000, 100'003}) {
        CHECK(cache_read(in, tokens) == rel(read_bytes(llm, tokens, kv), 1e-12));
      }
    }
  }
}

TEST_CASE("layers hold the bytes in the model's summary") {
  const FullMethod full;
  for (const std::string& name : kHybrids) {
    INFO(name);
    const Llm& llm = find_llm(name);
    CostInput in = input(llm, full);
    in.batch = 3;
    for (const std::int64_t tokens : {1, 129, 5000, 100'003}) {
      Bytes sum;
      for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
        sum += layer_cache(in, l, held_entries(in, l, tokens, tokens)).total();
      }
      // Fractions of a byte are rounded up per layer.
      const double all = 3 * held_bytes(llm, tokens, in.kv_dtype);
      CHECK(static_cast<double>(sum.count()) >= all);
      CHECK(static_cast<double>(sum.count()) <= all + 3 * llm.n_layers());
    }
  }
}

TEST_CASE("a recurrent layer's decode step does not depend on the context") {
  const FullMethod full;
  const Roofline roofline{a800(), find_stack("ideal"), {}};
  for (const char* name : {"Qwen3-Next-80B-A3B", "Nemotron-H-56B", "Jamba-1.5-Mini"}) {
    const Llm& llm = find_llm(name);
    const CostInput in = input(llm, full);
    int recurrent = 0;
    for (std::int32_t l = 0; l < llm.n_layers(); ++l) {
      const LayerSpec& layer = llm.layers[static_cast<std::size_t>(l)];
      if (layer.state.kind == StateKind::kNone) continue;
      ++recurrent;
      const OpGraph near = decode_layer(in, l, moment(in, l, 10));
      const OpGraph far = decode_layer(in, l, moment(in, l, 1'000'000));
      CHECK(evaluate(near, roofline).bytes == evaluate(far, roofline).bytes);
      CHECK(evaluate(near, roofline).time == evaluate(far, roofline).time);
      CHECK(near.alive_peak().bytes == far.alive_peak().bytes);
    }
    CHECK(recurrent > 0);
  }
}

TEST_CASE("tensor-parallel ranks split states and heads, and replicate data shared by all heads") {
  for (const std::string& name : kHybrids) {
    INFO(name);
    const Llm& llm = find_llm(name);
    const Llm shard = tensor_shard(llm, 2);
    for (std::size_t l = 0; l < llm.layers.size(); ++l) {
      const auto whole = cache_items(llm.layers[l], Dtype::kBf16);
      const auto part = cache_items(shard.layers[l], Dtype::kBf16);
      REQUIRE(whole.size() == part.size());
      const bool one_for_all = attention_work(llm.layers[l].attention).is_latent;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        const bool copied = one_for_all || whole[i].role == CacheRole::kIndex;
        const bool of_state =
            whole[i].role == CacheRole::kState && llm.layers[l].state.kind != StateKind::kNone;
        const double ranks = copied && !of_state ? 1 : 2;
        // Groups of B and C that are not divisible over ranks are copied: the sum is slightly
        // larger.
        CHECK(ranks * part[i].entry_bytes >= whole[i].entry_bytes);
        CHECK(ranks * part[i].entry_bytes <= (of_state ? 1.02 : 1) * whole[i].entry_bytes);
      }
      const NewTokens span{.tokens = 1, .before = 5000};
      const auto all = mixer_operators(llm.layers[l], span);
      const auto one = mixer_operators(shard.layers[l], span);
      REQUIRE(all.size() == one.size());
      for (std::size_t i = 0; i < all.size(); ++i) {
        const bool divides = all[i].kind == MixerOpKind::kRecurrence;
        CHECK(all[i].flops == rel((divides ? 2 : 1) * one[i].flops, 1e-12));
      }
    }
  }
}

TEST_CASE("an iteration of a service costs the same as the static step") {
  const FullMethod full;
  const Roofline roofline{a800(), find_stack("ideal"), {}};
  for (const std::string& name : kHybrids) {
    INFO(name);
    const Llm& llm = find_llm(name);
    CostInput in = input(llm, full);
    constexpr std::int64_t kTokens = 5000;
    in.batch = 4;
    const StepCost together = evaluate(decode_step(in, kTokens - 1, kTokens), roofline);
    MixedStepCost mixed{in, roofline};
    std::vector<DecodeLoad> loads;
    for (const MixedStepCost::LayerClass& one : mixed.layer_classes()) {
      const DecodeState m = decode_moment(in, one.layer, kTokens - 1, kTokens,
                                          held_entries(in, one.layer, kTokens - 1, kTokens - 1));
      loads.push_back({.attended = 4.0 * static_cast<double>(m.attended),
                       .held = 4.0 * static_cast<double>(m.after)});
    }
    const MixedCost cost = mixed.cost({.decodes = 4, .loads = loads, .chunks = {}});
    CHECK(cost.flops == rel(together.flops, 1e-9));
    CHECK(cost.bytes == rel(together.bytes, 1e-9));
    CHECK(cost.time.count() == rel(together.time.count(), 1e-9));
  }
}

TEST_CASE("the parts of a prompt attend to the same number of entries as the whole") {
  for (const std::string& name : kHybrids) {
    INFO(name);
    const Llm& llm = find_llm(name);
    for (const LayerSpec& layer : llm.layers) {
      const LayerKind& kind = attention_kind(layer.attention);
      if (layer.attention.n_heads == 0) continue;
      double before = 0;
      for (const double tokens : {1.0, 100.0, 3000.0, 9000.0, 40'000.0}) {
        const double all = kind.pairs(layer, tokens);
        CHECK(all > before);
        CHECK(all <= tokens * tokens);
        before = all;
      }
    }
  }
}

}  // namespace
}  // namespace kvsim
