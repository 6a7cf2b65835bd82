// Layers with different visible tokens: MiMo-V2 (two head shapes), Step 3.5, Llama 4 (chunks), and
// the architectures of DeciLM and Nemotron from architecture search.

#include <cmath>
#include <string>

#include <fmt/format.h>

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"
#include "models/llm/hf/windows.hpp"

namespace kvsim::hf {

/// MiMo-V2: full layers, and window layers with a different number and width of heads.
Llm read_mimo_v2(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = read_layer_count(config);
  const AttentionSpec full = read_grouped_heads(config, llm.d_model);
  AttentionSpec sliding = full;
  sliding.n_heads = count_or(config, "swa_num_attention_heads", full.n_heads, 1, kMaxHeads);
  sliding.head_dim = count_or(config, "swa_head_dim", full.head_dim, 1, kLargestHead);
  sliding.v_head_dim = count_or(config, "swa_v_head_dim", full.v_head_dim, 1, kLargestHead);
  if (const auto kv = config.find("swa_num_key_value_heads")) set_kv_heads(sliding, *kv);
  sliding.window =
      count(any_of(config, {"sliding_window", "sliding_window_size"}), 1, kMaxPositions);
  const std::vector<std::int32_t> is_sliding =
      layer_numbers(config.at("hybrid_layer_pattern"), n_layers, 0, 1);
  const FeedForward blocks = read_feed_forward(config, n_layers);
  const bool has_bias = flag(config, "attention_bias", false);
  const auto method = config.find("topk_method");
  const bool router_bias = method && method->string() == "noaux_tc";
  for (std::int32_t l = 0; l < n_layers; ++l) {
    const bool slides = is_sliding[static_cast<std::size_t>(l)] == 1;
    const LayerSpec layer{.attention = slides ? sliding : full, .mlp = blocks.of(l)};
    const AttentionSpec& a = layer.attention;
    llm.extra_parameters += 2 * d;
    if (has_bias) {
      llm.extra_parameters += q_width(a) + std::int64_t{a.n_kv_heads} * (a.head_dim + a.v_head_dim);
    }
    const bool sinks = flag(
        config, slides ? "add_swa_attention_sink_bias" : "add_full_attention_sink_bias", false);
    if (sinks) llm.extra_parameters += a.n_heads;
    if (layer.mlp.n_experts > 0) {
      llm.extra_bytes += 2 * d * layer.mlp.n_experts;  // the router is stored in fp32
      if (router_bias) add_router_bias(layer.mlp, llm);
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  return llm;
}

/// Step 3.5 and 3.7: full layers, and window layers that may have a different number of heads.
Llm read_step3p5(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = read_layer_count(config);
  AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  if (const auto groups = config.find("num_attention_groups")) set_kv_heads(attention, *groups);
  AttentionSpec sliding = attention;
  if (const auto other = config.find("attention_other_setting"); other && other->is_object()) {
    sliding.n_heads = count_or(*other, "num_attention_heads", attention.n_heads, 1, kMaxHeads);
    sliding.head_dim = count_or(*other, "head_dim", attention.head_dim, 1, kLargestHead);
    sliding.v_head_dim = sliding.head_dim;
    if (const auto groups = other->find("num_attention_groups")) set_kv_heads(sliding, *groups);
  }
  if (flag(config, "use_head_wise_attn_gate", false)) attention.gate_dim = sliding.gate_dim = 1;
  const bool qk_norm = flag(config, "use_qk_norm", false);
  const std::vector<std::int32_t> windows = read_windows(config, Window::kNone, n_layers);
  const FeedForward blocks = read_feed_forward(config, n_layers);
  const bool router_bias = flag(config, "use_moe_router_bias", false);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    const std::int32_t window = windows[static_cast<std::size_t>(l)];
    LayerSpec layer{.attention = window > 0 ? sliding : attention, .mlp = blocks.of(l)};
    layer.attention.window = window;
    llm.extra_parameters += 2 * d;
    if (qk_norm) llm.extra_parameters += 2 * std::int64_t{layer.attention.head_dim};
    if (router_bias) add_router_bias(layer.mlp, llm);
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  if (!qk_norm) {
    llm.notes.emplace_back(
        "norms on queries and keys, and gates of heads, are counted only where the configuration "
        "states them");
  }
  return llm;
}

/// Llama 4: chunked local attention, and full attention without positions in every fourth layer.
Llm read_llama4(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = read_layer_count(config);
  const AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  const std::int32_t chunk = count_or(config, "attention_chunk_size", 8192, 1, kMaxPositions);
  // 1 marks a layer with positions, i.e. a local layer (Llama4TextConfig).
  std::vector<bool> is_local;
  const auto types = config.find("layer_types");
  const auto marks = config.find("no_rope_layers");
  if (types) {
    const std::vector<Field> items = types->items();
    for (const std::string& word : layer_words(*types, n_layers)) {
      if (word != "full_attention" && word != "chunked_attention") {
        refuse_word(items[is_local.size()], "full_attention, chunked_attention");
      }
      is_local.push_back(word == "chunked_attention");
    }
  } else if (marks && marks->is_array() && !marks->items().empty()) {
    for (const std::int32_t mark : layer_numbers(*marks, n_layers, 0, 1)) {
      is_local.push_back(mark == 1);
    }
  } else {
    const std::int32_t step = count_or(config, "no_rope_layer_interval", 4, 1, kMaxLayers);
    for (std::int32_t l = 0; l < n_layers; ++l) is_local.push_back((l + 1) % step != 0);
  }
  FeedForward blocks = read_feed_forward(config, n_layers);
  blocks.sparse.shared_d_ff = blocks.sparse.d_ff;  // one shared expert, as wide as a routed one
  std::int64_t bias = 0;
  if (flag(config, "attention_bias", false))
    bias = q_width(attention) + 2 * kv_width(attention) + d;
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.attention = attention, .mlp = blocks.of(l)};
    if (is_local[static_cast<std::size_t>(l)]) layer.attention.chunk = chunk;
    llm.layers.push_back(layer);
    llm.extra_parameters += 2 * d + bias;
  }
  llm.extra_parameters += d;
  return llm;
}

/// DeciLM and Nemotron-NAS: each layer has its own number of heads and width, or has only
/// one of the blocks.
Llm read_decilm(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = read_layer_count(config);
  const AttentionSpec heads =
      read_heads(config, config.at("num_attention_heads"), llm.d_model, {"head_dim"});
  const Field list = config.at("block_configs");
  const std::vector<Field> blocks = list.items();
  if (std::ssize(blocks) != n_layers) {
    list.fail(fmt::format("{} entries for {} layers", blocks.size(), n_layers));
  }
  const bool bias = flag(config, "attention_bias", false);
  const bool mlp_bias = flag(config, "mlp_bias", false);
  for (const Field& block : blocks) {
    LayerSpec layer;
    const Field attention = block.at("attention");
    for (const char* key : {"sparsify", "num_sink_tokens"}) {
      if (attention.has(key)) attention.at(key).fail("attention of this kind is not modelled");
    }
    // A matrix instead of a block.
    const auto linear = [&](const Field& part) {
      if (!flag(part, "replace_with_linear", false)) return false;
      llm.extra_parameters += d * d + d;
      llm.extra_active_parameters += d * d;
      return true;
    };
    if (!linear(attention) && !flag(attention, "no_op", false)) {
      layer.attention = heads;
      const Field group = any_of(attention, {"n_heads_in_group", "num_key_value_heads"});
      if (attention.has("n_heads_in_group")) {
        const std::int32_t size = count(group, 1, kMaxHeads);
        if (heads.n_heads % size != 0) {
          group.fail(fmt::format("does not divide {} heads", heads.n_heads));
        }
        layer.attention.n_kv_heads = heads.n_heads / size;
      } else {
        set_kv_heads(layer.attention, group);
      }
      layer.attention.window = count_or(attention, "window_length", 0, 0, kMaxPositions);
      llm.extra_parameters += d;
      if (bias) llm.extra_parameters += q_width(heads) + 2 * kv_width(layer.attention) + d;
    }
    const Field ffn = block.at("ffn");
    if (!linear(ffn) && !flag(ffn, "no_op", false)) {
      if (const auto width = ffn.find("intermediate_size")) {
        layer.mlp.d_ff = count(*width, 1, kLargestFfn);
      } else {
        // Two thirds of the multiple of the hidden width, rounded up to 256 (DeciLM's
        // _ffn_mult_to_intermediate_size).
        constexpr std::int64_t kRound = 256;
        const auto raw = static_cast<std::int64_t>(2 * ffn.at("ffn_mult").number(1e-6, 1e4) *
                                                   static_cast<double>(d) / 3);
        layer.mlp.d_ff = static_cast<std::int32_t>((raw + kRound - 1) / kRound * kRound);
      }
      llm.extra_parameters += d;
      if (mlp_bias) llm.extra_parameters += 2 * std::int64_t{layer.mlp.d_ff} + d;
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  return llm;
}

}  // namespace kvsim::hf
