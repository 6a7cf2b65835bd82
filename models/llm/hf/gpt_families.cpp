// GPT-2 and models with the same structure: LayerNorm with bias, ungated blocks.

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"

namespace kvsim::hf {
namespace {

/// Common settings of the older families: LayerNorm with bias, an ungated block of `d_ff`.
struct Plain {
  std::int64_t norms_per_layer = 2;
  std::int64_t bias_per_layer = 0;
  std::int64_t extra = 0;  // in addition to the layers and the last norm
};

void fill_layers(Llm& llm, std::int32_t n_layers, const AttentionSpec& attention, std::int32_t d_ff,
                 const Plain& plain) {
  const std::int64_t norm = 2 * std::int64_t{llm.d_model};
  llm.layers.assign(static_cast<std::size_t>(n_layers),
                    LayerSpec{attention, MlpSpec{.d_ff = d_ff, .gated = false}});
  llm.extra_parameters =
      n_layers * (plain.norms_per_layer * norm + plain.bias_per_layer) + norm + plain.extra;
}

/// Biases of Q, K, V, output, up and down.
std::int64_t all_biases(const Llm& llm, const AttentionSpec& attention, std::int32_t d_ff) {
  return q_width(attention) + 2 * kv_width(attention) + 2 * std::int64_t{llm.d_model} + d_ff;
}

std::int32_t ffn_or_four_widths(const Field& config, std::initializer_list<std::string_view> keys,
                                std::int32_t d_model) {
  for (const std::string_view key : keys) {
    if (const auto width = config.find(key)) return count(*width, 1, kLargestFfn);
  }
  return 4 * d_model;
}

}  // namespace

Llm read_gpt2(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("n_embd"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("n_positions"), 1, kMaxPositions);
  llm.learned_positions = llm.max_positions;
  llm.tied_embeddings = flag(config, "tie_word_embeddings", true);
  const AttentionSpec attention = read_heads(config, config.at("n_head"), llm.d_model, {});
  const std::int32_t d_ff = ffn_or_four_widths(config, {"n_inner"}, llm.d_model);
  fill_layers(llm, count(config.at("n_layer"), 1, kMaxLayers), attention, d_ff,
              {.bias_per_layer = all_biases(llm, attention, d_ff)});
  return llm;
}

Llm read_gptj(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("n_embd"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("n_positions"), 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = 10000;
  const AttentionSpec attention = read_heads(config, config.at("n_head"), llm.d_model, {});
  const std::int32_t d_ff = ffn_or_four_widths(config, {"n_inner"}, llm.d_model);
  // One norm per layer, biases only in the block, and a bias on the head.
  fill_layers(llm, count(config.at("n_layer"), 1, kMaxLayers), attention, d_ff,
              {.norms_per_layer = 1,
               .bias_per_layer = std::int64_t{d_ff} + llm.d_model,
               .extra = llm.vocab_size});
  return llm;
}

Llm read_gpt_neox(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("max_position_embeddings"), 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = rope_theta(config, {"rotary_emb_base", "rope_theta"}, 10000);
  const AttentionSpec attention =
      read_heads(config, config.at("num_attention_heads"), llm.d_model, {});
  const std::int32_t d_ff = count(config.at("intermediate_size"), 1, kLargestFfn);
  const bool bias = flag(config, "attention_bias", true);
  fill_layers(llm, count(config.at("num_hidden_layers"), 1, kMaxLayers), attention, d_ff,
              {.bias_per_layer =
                   bias ? all_biases(llm, attention, d_ff) : std::int64_t{d_ff} + llm.d_model});
  return llm;
}

Llm read_opt(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("max_position_embeddings"), 1, kMaxPositions);
  llm.learned_positions = llm.max_positions + 2;  // the table starts at an offset of 2
  llm.tied_embeddings = flag(config, "tie_word_embeddings", true);
  if (const auto width = config.find("word_embed_proj_dim")) {
    if (count(*width, 1, kLargestWidth) != llm.d_model)
      width->fail("embeddings of another width than hidden_size are not modelled (OPT-350M)");
  }
  if (const auto before = config.find("do_layer_norm_before"); before && !before->boolean())
    before->fail("norms after the blocks are not modelled (OPT-350M)");
  const AttentionSpec attention =
      read_heads(config, config.at("num_attention_heads"), llm.d_model, {});
  const std::int32_t d_ff = count(config.at("ffn_dim"), 1, kLargestFfn);
  const bool bias = flag(config, "enable_bias", true);
  fill_layers(llm, count(config.at("num_hidden_layers"), 1, kMaxLayers), attention, d_ff,
              {.bias_per_layer = bias ? all_biases(llm, attention, d_ff) : 0});
  return llm;
}

Llm read_bloom(const Field& config) {
  Llm llm;
  llm.d_model = count(any_of(config, {"hidden_size", "n_embed"}), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count_or(config, "seq_length", 2048, 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", true);
  const AttentionSpec attention =
      read_heads(config, any_of(config, {"n_head", "num_attention_heads"}), llm.d_model, {});
  const std::int32_t d_ff = 4 * llm.d_model;
  // A norm on the embeddings as well.
  fill_layers(
      llm, count(any_of(config, {"n_layer", "num_hidden_layers"}), 1, kMaxLayers), attention, d_ff,
      {.bias_per_layer = all_biases(llm, attention, d_ff), .extra = 2 * std::int64_t{llm.d_model}});
  return llm;
}

Llm read_falcon(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count_or(config, "max_position_embeddings", 2048, 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", true);
  if (!flag(config, "alibi", false)) llm.rope_theta = rope_theta(config, {"rope_theta"}, 10000);
  AttentionSpec attention =
      read_heads(config, any_of(config, {"num_attention_heads", "n_head"}), llm.d_model, {});
  const bool new_decoder = flag(config, "new_decoder_architecture", false);
  if (new_decoder) {
    set_kv_heads(attention, any_of(config, {"num_kv_heads", "n_head_kv"}));
  } else if (flag(config, "multi_query", true)) {
    attention.n_kv_heads = 1;  // regardless of num_kv_heads: it is 71 in Falcon-7B's file
  }
  const std::int32_t d_ff = ffn_or_four_widths(config, {"ffn_hidden_size"}, llm.d_model);
  std::int64_t norms = 2;
  if (new_decoder)
    norms = count_or(config, "num_ln_in_parallel_attn", 2, 1, 2);
  else if (flag(config, "parallel_attn", true))
    norms = 1;
  fill_layers(
      llm, count(any_of(config, {"num_hidden_layers", "n_layer"}), 1, kMaxLayers), attention, d_ff,
      {.norms_per_layer = norms,
       .bias_per_layer = flag(config, "bias", false) ? all_biases(llm, attention, d_ff) : 0});
  return llm;
}

/// phi-1, phi-1.5, phi-2.
Llm read_phi(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("max_position_embeddings"), 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = rope_theta(config, {"rope_theta"}, 10000);
  AttentionSpec attention = read_heads(config, config.at("num_attention_heads"), llm.d_model, {});
  if (const auto kv = config.find("num_key_value_heads")) set_kv_heads(attention, *kv);
  const std::int32_t d_ff = count(config.at("intermediate_size"), 1, kLargestFfn);
  const std::int64_t qk_norm =
      flag(config, "qk_layernorm", false) ? 4 * std::int64_t{attention.head_dim} : 0;
  fill_layers(llm, count(config.at("num_hidden_layers"), 1, kMaxLayers), attention, d_ff,
              {.norms_per_layer = 1,
               .bias_per_layer = all_biases(llm, attention, d_ff) + qk_norm,
               .extra = llm.vocab_size});
  return llm;
}

}  // namespace kvsim::hf
