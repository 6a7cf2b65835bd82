#include "models/llm/hf/blocks.hpp"
#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/windows.hpp"

namespace kvsim::hf {
namespace {

/// DeepSeek-V2 and V3: multi-head latent attention.
Llm read_deepseek(const Field& config, bool router_bias) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("max_position_embeddings"), 1, kMostPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = rope_theta(config, {"rope_theta"}, 10000);

  AttentionSpec attention;
  attention.n_heads = count(config.at("num_attention_heads"), 1, kMostHeads);
  attention.n_kv_heads = attention.n_heads;
  if (const auto kv = config.find("num_key_value_heads")) set_kv_heads(attention, *kv);
  attention.kv_lora_rank = count(config.at("kv_lora_rank"), 1, kLargestHead);
  attention.q_lora_rank = count_or(config, "q_lora_rank", 0, 1, kLargestWidth);
  attention.rope_head_dim = count(config.at("qk_rope_head_dim"), 1, kLargestHead / 2);
  attention.head_dim =
      count(config.at("qk_nope_head_dim"), 1, kLargestHead / 2) + attention.rope_head_dim;
  attention.v_head_dim = count(config.at("v_head_dim"), 1, kLargestHead);

  const std::int32_t n_layers = count(config.at("num_hidden_layers"), 1, kMostLayers);
  (void)read_windows(config, Window::kNone, n_layers);
  Blocks blocks{config, Experts::kDeepSeek, llm.d_model};
  if (router_bias) blocks.add_router_bias();
  std::int64_t extra =
      2 * std::int64_t{llm.d_model} + attention.kv_lora_rank + attention.q_lora_rank;
  if (flag(config, "attention_bias", false)) {
    extra += attention.q_lora_rank + attention.kv_lora_rank + attention.rope_head_dim + llm.d_model;
  }
  for (std::int32_t layer = 0; layer < n_layers; ++layer) {
    const Block& block = blocks.of(layer);
    llm.layers.push_back({attention, block.mlp});
    llm.extra_parameters += extra + block.extra;
  }
  llm.extra_parameters += llm.d_model;
  return llm;
}

}  // namespace

Llm read_deepseek_v2(const Field& config) { return read_deepseek(config, false); }
Llm read_deepseek_v3(const Field& config) { return read_deepseek(config, true); }

}  // namespace kvsim::hf
