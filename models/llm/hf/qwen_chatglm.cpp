// Two families with different key names.

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"

namespace kvsim::hf {

/// The first Qwen: `intermediate_size` is the total width of gate and up.
Llm read_qwen(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions =
      count(any_of(config, {"max_position_embeddings", "seq_length"}), 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = rope_theta(config, {"rotary_emb_base"}, 10000);
  const AttentionSpec attention =
      read_heads(config, config.at("num_attention_heads"), llm.d_model, {"kv_channels"});
  const Field ffn = config.at("intermediate_size");
  const std::int32_t both = count(ffn, 2, 2 * kLargestFfn);
  if (both % 2 != 0) ffn.expected("an even number: gate and up together");
  const bool bias = !flag(config, "no_bias", true);
  const std::int32_t n_layers = count(config.at("num_hidden_layers"), 1, kMaxLayers);
  llm.layers.assign(static_cast<std::size_t>(n_layers),
                    LayerSpec{attention, MlpSpec{.d_ff = both / 2}});
  std::int64_t extra = 2 * std::int64_t{llm.d_model} + 3 * q_width(attention);
  if (bias) extra += 2 * std::int64_t{llm.d_model} + both;
  llm.extra_parameters = n_layers * extra + llm.d_model;
  return llm;
}

/// ChatGLM-6B (LayerNorm, ungated, biases) and ChatGLM2, ChatGLM3, GLM-4-9B (RMSNorm, gated).
Llm read_chatglm(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  const Field layers = any_of(config, {"num_layers", "num_hidden_layers"});
  const std::int32_t n_layers = count(layers, 1, kMaxLayers);
  llm.rope_theta = 10000;
  if (config.has("inner_hidden_size") || config.has("position_encoding_2d")) {
    llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
    llm.max_positions = count(config.at("max_sequence_length"), 1, kMaxPositions);
    llm.tied_embeddings = true;
    const AttentionSpec attention =
        read_heads(config, config.at("num_attention_heads"), llm.d_model, {});
    const std::int32_t d_ff = count(config.at("inner_hidden_size"), 1, kLargestFfn);
    llm.layers.assign(static_cast<std::size_t>(n_layers),
                      LayerSpec{attention, MlpSpec{.d_ff = d_ff, .gated = false}});
    // Two LayerNorms with bias; biases of Q, K, V, output, up and down.
    const std::int64_t d = llm.d_model;
    llm.extra_parameters = n_layers * (4 * d + 3 * q_width(attention) + 2 * d + d_ff) + 2 * d;
    return llm;
  }
  llm.vocab_size =
      count(any_of(config, {"padded_vocab_size", "vocab_size"}), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("seq_length"), 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  AttentionSpec attention =
      read_heads(config, config.at("num_attention_heads"), llm.d_model, {"kv_channels"});
  if (flag(config, "multi_query_attention", false))
    set_kv_heads(attention, config.at("multi_query_group_num"));
  const std::int32_t d_ff = count(config.at("ffn_hidden_size"), 1, kLargestFfn);
  llm.layers.assign(static_cast<std::size_t>(n_layers),
                    LayerSpec{attention, MlpSpec{.d_ff = d_ff}});
  const std::int64_t norm = (flag(config, "rmsnorm", true) ? 1 : 2) * std::int64_t{llm.d_model};
  std::int64_t extra = 2 * norm;
  const bool all = flag(config, "add_bias_linear", false);
  if (all || flag(config, "add_qkv_bias", false))
    extra += q_width(attention) + 2 * kv_width(attention);
  if (all) extra += 2 * std::int64_t{llm.d_model} + 2 * std::int64_t{d_ff};
  llm.extra_parameters = n_layers * extra + (flag(config, "post_layer_norm", true) ? norm : 0);
  return llm;
}

}  // namespace kvsim::hf
