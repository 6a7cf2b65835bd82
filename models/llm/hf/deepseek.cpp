// Multi-head latent attention: DeepSeek-V2 and V3 and the models of their build (Kimi-K2, GLM-4.7
// Flash), with an indexer (DeepSeek-V3.2, GLM-5), and mixed with Kimi delta attention.

#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"

namespace kvsim::hf {
namespace {

/// Rejects layers without latent attention.
void check_layer_types(const Field& config, std::int32_t n_layers) {
  const auto types = config.find("layer_types");
  if (!types) return;
  const std::vector<Field> items = types->items();
  const std::string_view all =
      config.has("index_topk") ? "deepseek_sparse_attention" : "full_attention";
  for (std::size_t l = 0; const std::string& word : layer_words(*types, n_layers)) {
    if (word != all) refuse_word(items[l], all);
    ++l;
  }
}

/// Returns the layers that compute their own index; empty if the file has no index. GLM-5.2 marks a
/// layer's indexer as "full" or "shared".
std::vector<bool> own_indexers(const Field& config, std::int32_t n_layers) {
  if (!config.has("index_topk")) return {};
  std::vector<bool> out(static_cast<std::size_t>(n_layers), true);
  const auto types = config.find("indexer_types");
  if (!types) return out;
  const std::vector<Field> items = types->items();
  const std::vector<std::string> words = layer_words(*types, n_layers);
  for (std::size_t l = 0; l < words.size(); ++l) {
    if (words[l] != "full" && words[l] != "shared") refuse_word(items[l], "full, shared");
    out[l] = words[l] == "full";
  }
  if (!out.front()) items.front().fail("the first layer has no earlier indexer to share");
  return out;
}

IndexSpec read_index(const Field& config) {
  return {.n_heads = count(config.at("index_n_heads"), 1, kMaxHeads),
          .head_dim = count(config.at("index_head_dim"), 1, kLargestHead),
          .top_k = count(config.at("index_topk"), 1, kMaxPositions)};
}

Llm read_deepseek(const Field& config, bool router_bias) {
  Llm llm = read_outline(config, false);
  AttentionSpec attention = read_latent_heads(config);
  const std::int32_t n_layers = read_layer_count(config);
  check_layer_types(config, n_layers);
  const FeedForward blocks = read_feed_forward(config, n_layers);
  const std::vector<bool> indexers = own_indexers(config, n_layers);
  if (!indexers.empty()) {
    // Index queries are computed from the low-rank queries.
    attention.q_lora_rank = count(config.at("q_lora_rank"), 1, kLargestWidth);
    attention.index = read_index(config);
  }
  std::int64_t extra = 2 * std::int64_t{llm.d_model} + latent_norms(attention);
  if (flag(config, "attention_bias", false)) {
    extra += attention.q_lora_rank + attention.kv_lora_rank + attention.rope_head_dim + llm.d_model;
  }
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.attention = attention, .mlp = blocks.of(l)};
    llm.extra_parameters += extra;
    if (router_bias) add_router_bias(layer.mlp, llm);
    if (!indexers.empty()) {
      layer.attention.index.is_borrowed = !indexers[static_cast<std::size_t>(l)];
      // A LayerNorm with bias on the index key, in fp32.
      if (!layer.attention.index.is_borrowed) {
        llm.extra_parameters += 2 * std::int64_t{attention.index.head_dim};
        llm.extra_bytes += 4 * std::int64_t{attention.index.head_dim};
      }
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += llm.d_model;
  return llm;
}

}  // namespace

Llm read_deepseek_v2(const Field& config) { return read_deepseek(config, false); }
Llm read_deepseek_v3(const Field& config) { return read_deepseek(config, true); }

/// Kimi-Linear and K3: Kimi delta attention in the layers listed in `linear_attn_config`, latent
/// attention in the others.
Llm read_kimi_linear(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = read_layer_count(config);
  AttentionSpec attention = read_latent_heads(config);
  if (flag(config, "mla_use_nope", false)) llm.rope_theta = 0;
  if (flag(config, "mla_use_output_gate", false)) attention.gate_dim = attention.v_head_dim;

  const Field linear = config.at("linear_attn_config");
  StateSpec state{.kind = StateKind::kKimiDelta, .dtype = Dtype::kFp32};
  state.n_heads = count(linear.at("num_heads"), 1, kMaxHeads);
  state.n_groups = state.n_heads;
  state.key_dim = count(linear.at("head_dim"), 1, kLargestHead);
  state.value_dim = state.key_dim;
  state.conv_kernel = count_or(linear, "short_conv_kernel_size", 4, 2, kLargestHead);
  const bool full_rank = flag(linear, "use_full_rank_gate", false);
  state.gate_rank = full_rank ? 0 : state.value_dim;
  const std::int64_t width = std::int64_t{state.n_heads} * state.value_dim;

  // Layers are counted from one here.
  std::vector<bool> is_full(static_cast<std::size_t>(n_layers), false);
  const Field full = linear.at("full_attn_layers");
  for (const Field& layer : full.items()) {
    is_full[static_cast<std::size_t>(layer.integer(1, n_layers) - 1)] = true;
  }
  if (const auto kda = linear.find("kda_layers")) {
    for (const Field& layer : kda->items()) {
      if (is_full[static_cast<std::size_t>(layer.integer(1, n_layers) - 1)]) {
        layer.fail("the layer is among full_attn_layers too");
      }
    }
    if (std::ssize(kda->items()) + std::ssize(full.items()) != n_layers) {
      kda->fail(fmt::format("{} layers, and {} of full attention, for {}", kda->items().size(),
                            full.items().size(), n_layers));
    }
  }

  const FeedForward blocks = read_feed_forward(config, n_layers);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.mlp = blocks.of(l)};
    llm.extra_parameters += 2 * d;
    add_router_bias(layer.mlp, llm);
    if (layer.mlp.latent_dim > 0 && flag(config, "latent_moe_use_norm", false)) {
      llm.extra_parameters += layer.mlp.latent_dim;
    }
    if (is_full[static_cast<std::size_t>(l)]) {
      layer.attention = attention;
      llm.extra_parameters += latent_norms(attention);
    } else {
      layer.state = state;
      // Decay per head, step bias per channel, and the norm on the output. Decay, step bias and the
      // convolutions are stored in fp32.
      const std::int64_t steps = state.n_heads + width;
      llm.extra_parameters += steps + state.value_dim;
      llm.extra_bytes += 2 * (steps + 3 * width * state.conv_kernel);
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  if (config.has("attn_res_block_size")) {
    // Residual vectors: two for attention and two for the feed-forward block per layer, and two at
    // the end.
    llm.extra_parameters += (4 * std::int64_t{n_layers} + 2) * d;
  }
  return llm;
}

/// DeepSeek-V4: sliding windows and compressed entries, hyper-connections, and experts that are
/// assigned by token id from a table in the first layers.
Llm read_deepseek_v4(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = read_layer_count(config);
  AttentionSpec attention;
  attention.n_heads = count(config.at("num_attention_heads"), 1, kMaxHeads);
  attention.n_kv_heads = 1;
  attention.head_dim = count(config.at("head_dim"), 1, kLargestHead);
  attention.v_head_dim = attention.head_dim;
  attention.rope_head_dim = count(config.at("qk_rope_head_dim"), 1, attention.head_dim);
  attention.q_lora_rank = count(config.at("q_lora_rank"), 1, kLargestWidth);
  attention.o_lora_rank = count(config.at("o_lora_rank"), 1, kLargestWidth);
  attention.o_groups = count(config.at("o_groups"), 1, kMaxHeads);
  if (attention.n_heads % attention.o_groups != 0) {
    config.at("o_groups").fail(fmt::format("does not divide {} heads", attention.n_heads));
  }
  attention.window = count(config.at("sliding_window"), 1, kMaxPositions);
  const IndexSpec index = read_index(config);

  // One ratio per layer, followed by those of prediction layers.
  const Field list = config.at("compress_ratios");
  const std::vector<Field> ratios = list.items();
  const std::int32_t n_mtp = count_or(config, "num_nextn_predict_layers", 0, 0, kMaxLayers);
  if (std::ssize(ratios) != n_layers && std::ssize(ratios) != n_layers + n_mtp) {
    list.fail(fmt::format("{} entries for {} layers", ratios.size(), n_layers));
  }
  const std::int64_t streams = count_or(config, "hc_mult", 1, 1, 64);
  const std::int32_t n_hash = count_or(config, "num_hash_layers", 0, 0, kMaxLayers);
  FeedForward blocks = read_feed_forward(config, n_layers);
  std::int64_t fp32 = 0;
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.attention = attention, .mlp = blocks.of(l)};
    AttentionSpec& a = layer.attention;
    a.ratio = count(ratios[static_cast<std::size_t>(l)], 0, kMaxPositions);
    // Only the overlapping ratio has an index (inference/model.py of the release).
    constexpr std::int32_t kIndexedRatio = 4;
    if (a.ratio == kIndexedRatio) a.index = index;
    llm.extra_parameters += 2 * d + a.q_lora_rank + a.head_dim;
    fp32 += a.n_heads;                                 // sinks
    const auto compressor = [&](std::int64_t width) {  // positions of a window's entries, a norm
      const std::int64_t sets = a.ratio == kIndexedRatio ? 2 : 1;
      fp32 += a.ratio * sets * width;
      llm.extra_parameters += width;
    };
    if (a.ratio > 0) compressor(a.head_dim);
    if (a.index.n_heads > 0) compressor(a.index.head_dim);
    if (streams > 1) {
      // For attention and for the feed-forward block: a projection of all streams, its bias and
      // scales.
      const std::int64_t mixes = (2 + streams) * streams;
      fp32 += 2 * (mixes * streams * d + mixes + 3);
      llm.extra_active_parameters += 2 * mixes * streams * d;
    }
    if (l < n_hash) {
      const std::int64_t table = std::int64_t{llm.vocab_size} * layer.mlp.top_k;
      llm.extra_parameters += table;
      constexpr std::int64_t kInt64Bytes = 8, kCountedBytes = 2;
      llm.extra_bytes += table * (kInt64Bytes - kCountedBytes);
    } else {
      fp32 += layer.mlp.n_experts;  // the router's bias
    }
    llm.layers.push_back(layer);
  }
  if (streams > 1) fp32 += streams * streams * d + streams + 1;
  llm.extra_parameters += d + fp32;
  llm.extra_bytes += 2 * fp32;
  return llm;
}

}  // namespace kvsim::hf
