// Gated delta nets with full attention in some layers: Qwen3-Next, Qwen3.5 and 3.6.

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"

namespace kvsim::hf {
namespace {

/// Returns the layers with full attention: by their list, else every `full_attention_interval`-th.
std::vector<bool> full_layers(const Field& config, std::int32_t n_layers) {
  std::vector<bool> out;
  if (const auto types = config.find("layer_types")) {
    const std::vector<Field> items = types->items();
    for (const std::string& word : layer_words(*types, n_layers)) {
      if (word != "full_attention" && word != "linear_attention") {
        refuse_word(items[out.size()], "full_attention, linear_attention");
      }
      out.push_back(word == "full_attention");
    }
    return out;
  }
  const std::int32_t interval = count_or(config, "full_attention_interval", 4, 1, kMaxLayers);
  for (std::int32_t l = 0; l < n_layers; ++l) out.push_back((l + 1) % interval == 0);
  return out;
}

}  // namespace

Llm read_qwen_next(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int32_t n_layers = read_layer_count(config);
  const std::int64_t d = llm.d_model;

  AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  // The query projection also outputs a gate of the same width as the queries.
  if (flag(config, "attn_output_gate", true)) attention.gate_dim = attention.head_dim;

  StateSpec state{.kind = StateKind::kGatedDelta, .dtype = state_dtype(config)};
  state.n_heads = count(config.at("linear_num_value_heads"), 1, kMaxHeads);
  state.n_groups = count(config.at("linear_num_key_heads"), 1, kMaxHeads);
  state.key_dim = count(config.at("linear_key_head_dim"), 1, kLargestHead);
  state.value_dim = count(config.at("linear_value_head_dim"), 1, kLargestHead);
  state.conv_kernel = count_or(config, "linear_conv_kernel_dim", 4, 2, kLargestHead);

  FeedForward blocks = read_feed_forward(config, n_layers);
  blocks.sparse.has_shared_gate = blocks.sparse.shared_d_ff > 0;
  const std::vector<bool> is_full = full_layers(config, n_layers);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.mlp = blocks.of(l)};
    llm.extra_parameters += 2 * d;
    if (is_full[static_cast<std::size_t>(l)]) {
      layer.attention = attention;
      llm.extra_parameters += 2 * std::int64_t{attention.head_dim};  // norms on queries and keys
    } else {
      layer.state = state;
      // Decay and step bias per head, and the norm on the output.
      llm.extra_parameters += 2 * std::int64_t{state.n_heads} + state.value_dim;
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  return llm;
}

}  // namespace kvsim::hf
