// Llama and models with the same structure: RMSNorm, gated blocks, rotary positions.

#include <fmt/format.h>

#include "models/llm/hf/blocks.hpp"
#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/windows.hpp"

namespace kvsim::hf {
namespace {

/// Linear layers of attention with a bias.
enum class AttentionBias : std::uint8_t {
  kNone,
  kQkv,         // Q, K and V, always (Qwen2)
  kByKeyQkv,    // Q, K and V if `attention_bias`
  kByKeyQkvOut  // Q, K, V and the output if `attention_bias`
};

/// The differences of a family with Llama's architecture (RMSNorm, gated block, no position table).
struct Traits {
  std::int32_t norms_per_layer = 2;
  bool qk_norm = false;  // one norm weight of head_dim on Q and one on K
  AttentionBias bias = AttentionBias::kNone;
  Window window = Window::kNone;
  Experts experts = Experts::kNone;
  bool tied = false;            // if `tie_word_embeddings` is absent
  std::int64_t vocab_size = 0;  // if `vocab_size` is absent (Gemma 3); 0: it is required
  std::int64_t head_dim = 0;    // if `head_dim` is absent; 0: d_model / n_heads
  std::int64_t n_heads = 0;     // if the number of heads is absent; 0: it is required
  std::int64_t n_kv_heads = 0;  // if the number of KV heads is absent; 0: equal to n_heads
  std::int64_t positions = 0;   // if max_position_embeddings is absent; 0: it is required
};

/// Reads families with Llama's structure.
Llm read_llama_build(const Field& config, const Traits& traits) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = traits.vocab_size > 0 && !config.has("vocab_size")
                       ? static_cast<std::int32_t>(traits.vocab_size)
                       : count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = traits.positions > 0 && !config.has("max_position_embeddings")
                          ? static_cast<std::int32_t>(traits.positions)
                          : count(config.at("max_position_embeddings"), 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", traits.tied);
  llm.rope_theta = rope_theta(config, {"rope_theta"}, 10000);

  AttentionSpec attention;
  if (traits.n_heads > 0 && !config.has("num_attention_heads")) {
    attention.n_heads = static_cast<std::int32_t>(traits.n_heads);
    attention.head_dim = count_or(config, "head_dim", traits.head_dim, 1, kLargestHead);
    attention.v_head_dim = attention.head_dim;
    attention.n_kv_heads = attention.n_heads;
  } else {
    attention = read_heads(config, config.at("num_attention_heads"), llm.d_model, {"head_dim"},
                           traits.head_dim);
  }
  if (const auto kv = config.find("num_key_value_heads")) {
    set_kv_heads(attention, *kv);
  } else if (traits.n_kv_heads > 0) {
    if (attention.n_heads % traits.n_kv_heads != 0) {
      config.fail(
          fmt::format("num_key_value_heads is missing, and its default of {} does not "
                      "divide {} query heads",
                      traits.n_kv_heads, attention.n_heads));
    }
    attention.n_kv_heads = static_cast<std::int32_t>(traits.n_kv_heads);
  }

  const std::int32_t n_layers = count(config.at("num_hidden_layers"), 1, kMaxLayers);
  const std::vector<std::int32_t> windows = read_windows(config, traits.window, n_layers);
  Blocks blocks{config, traits.experts, llm.d_model};
  if (traits.experts == Experts::kDeepSeek) blocks.add_router_bias();

  std::int64_t bias = 0;
  const bool by_key = flag(config, "attention_bias", false);
  const bool qkv_out = traits.bias == AttentionBias::kByKeyQkvOut && by_key;
  if (traits.bias == AttentionBias::kQkv || qkv_out ||
      (traits.bias == AttentionBias::kByKeyQkv && by_key))
    bias += q_width(attention) + 2 * kv_width(attention);
  if (qkv_out) bias += llm.d_model;
  const bool mlp_bias =
      traits.bias == AttentionBias::kByKeyQkvOut && flag(config, "mlp_bias", false);
  const bool qk_norm = traits.qk_norm || flag(config, "use_qk_norm", false);

  for (std::int32_t layer = 0; layer < n_layers; ++layer) {
    attention.window = windows[static_cast<std::size_t>(layer)];
    const Block& block = blocks.of(layer);
    llm.layers.push_back({attention, block.mlp});
    llm.extra_parameters += std::int64_t{traits.norms_per_layer} * llm.d_model + bias + block.extra;
    if (mlp_bias) llm.extra_parameters += 2 * std::int64_t{block.mlp.d_ff} + llm.d_model;
    if (qk_norm) llm.extra_parameters += 2 * std::int64_t{attention.head_dim};
    if (traits.experts == Experts::kGptOss) llm.extra_parameters += attention.n_heads;  // sinks
  }
  llm.extra_parameters += llm.d_model;  // the last norm
  return llm;
}

}  // namespace

Llm read_llama(const Field& c) {
  return read_llama_build(c, {.bias = AttentionBias::kByKeyQkvOut});
}
Llm read_mistral(const Field& c) { return read_llama_build(c, {.window = Window::kEvery4096}); }
Llm read_mixtral(const Field& c) {
  return read_llama_build(c, {.window = Window::kEvery, .experts = Experts::kMixtral});
}
Llm read_qwen2(const Field& c) {
  return read_llama_build(c, {.bias = AttentionBias::kQkv, .window = Window::kUpper});
}
Llm read_qwen2_moe(const Field& c) {
  return read_llama_build(
      c, {.bias = AttentionBias::kQkv, .window = Window::kUpper, .experts = Experts::kQwen2});
}
Llm read_qwen3(const Field& c) {
  return read_llama_build(c, {.qk_norm = true,
                              .bias = AttentionBias::kByKeyQkvOut,
                              .window = Window::kUpper,
                              .head_dim = 128});
}
Llm read_qwen3_moe(const Field& c) {
  return read_llama_build(c, {.qk_norm = true,
                              .bias = AttentionBias::kByKeyQkvOut,
                              .window = Window::kUpper,
                              .experts = Experts::kQwen3});
}
Llm read_phi3(const Field& c) { return read_llama_build(c, {.window = Window::kEvery}); }
Llm read_glm(const Field& c) { return read_llama_build(c, {.bias = AttentionBias::kByKeyQkv}); }
Llm read_glm4(const Field& c) {
  return read_llama_build(c, {.norms_per_layer = 4, .bias = AttentionBias::kByKeyQkv});
}
Llm read_glm4_moe(const Field& c) {
  return read_llama_build(c, {.bias = AttentionBias::kByKeyQkv, .experts = Experts::kDeepSeek});
}
Llm read_gemma(const Field& c) {
  return read_llama_build(c, {.bias = AttentionBias::kByKeyQkvOut, .tied = true, .head_dim = 256});
}
Llm read_gemma2(const Field& c) {
  return read_llama_build(c, {.norms_per_layer = 4,
                              .bias = AttentionBias::kByKeyQkvOut,
                              .window = Window::kAlternate,
                              .tied = true,
                              .head_dim = 256});
}
// The published files of Gemma 3 omit values equal to the defaults of Gemma3TextConfig.
Llm read_gemma3(const Field& c) {
  return read_llama_build(c, {.norms_per_layer = 4,
                              .qk_norm = true,
                              .bias = AttentionBias::kByKeyQkvOut,
                              .window = Window::kFiveOfSix,
                              .tied = true,
                              .vocab_size = 262208,
                              .head_dim = 256,
                              .n_heads = 8,
                              .n_kv_heads = 4,
                              .positions = 131072});
}
Llm read_gpt_oss(const Field& c) {
  return read_llama_build(c, {.bias = AttentionBias::kByKeyQkvOut,
                              .window = Window::kAlternate,
                              .experts = Experts::kGptOss});
}

}  // namespace kvsim::hf
