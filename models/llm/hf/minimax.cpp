// MiniMax-M2 and M3: grouped-query attention, in M3 restricted to blocks chosen by an index.

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"

namespace kvsim::hf {
namespace {

/// Returns the elements of the norms on queries and keys: over all heads, or one head's.
std::int64_t qk_norms(const Field& config, const AttentionSpec& a) {
  if (!flag(config, "use_qk_norm", true)) return 0;
  const auto type = config.find("qk_norm_type");
  const bool whole = type && type->string() == "per_layer";
  return whole ? std::int64_t{a.n_heads + a.n_kv_heads} * a.head_dim : 2 * std::int64_t{a.head_dim};
}

}  // namespace

Llm read_minimax(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = read_layer_count(config);
  AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  if (flag(config, "attention_output_gate", false)) attention.gate_dim = attention.head_dim;
  if (const auto types = config.find("attn_type_list")) {
    const std::vector<Field> items = types->items();
    const std::vector<std::int32_t> marks = layer_numbers(*types, n_layers, 0, 1);
    for (std::size_t l = 0; l < marks.size(); ++l) {
      if (marks[l] != 1) items[l].fail("linear attention of this family is not modelled");
    }
  }

  IndexSpec index;
  std::vector<std::int32_t> sparse(static_cast<std::size_t>(n_layers), 0);
  if (const auto keys = config.find("sparse_attention_config");
      keys && flag(*keys, "use_sparse_attention", true)) {
    index.n_heads = count(keys->at("sparse_num_index_heads"), 1, kMaxHeads);
    index.head_dim = count(keys->at("sparse_index_dim"), 1, kLargestHead);
    index.top_k = count(keys->at("sparse_topk_blocks"), 1, 1 << 14) *
                  count(keys->at("sparse_block_size"), 1, 1 << 14);
    sparse = layer_numbers(keys->at("sparse_attention_freq"), n_layers, 0, 1);
  }

  const FeedForward blocks = read_feed_forward(config, n_layers);
  const bool router_bias = flag(config, "use_routing_bias", false);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.attention = attention, .mlp = blocks.of(l)};
    llm.extra_parameters += 2 * d + qk_norms(config, attention);
    if (sparse[static_cast<std::size_t>(l)] == 1) {
      layer.attention.index = index;
      llm.extra_parameters += 2 * std::int64_t{index.head_dim};  // norms on index queries and keys
    }
    if (layer.mlp.n_experts > 0) {
      llm.extra_bytes += 2 * d * layer.mlp.n_experts;  // the router is stored in fp32
      if (router_bias) add_router_bias(layer.mlp, llm);
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  return llm;
}

}  // namespace kvsim::hf
