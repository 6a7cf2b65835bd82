// Gemma 3n and Gemma 4: windows and full layers with heads of two shapes, and layers that read an
// earlier layer's cache.

#include <fmt/format.h>

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"
#include "models/llm/hf/windows.hpp"

namespace kvsim::hf {
namespace {

/// Marks the last `num_kv_shared_layers` layers as readers of the last own cache of their kind.
/// `otherwise`: their number if the file has none. Returns the first of them.
std::int32_t first_shared(const Field& config, std::int64_t otherwise, std::int32_t n_layers) {
  const std::int32_t shared = count_or(config, "num_kv_shared_layers", otherwise, 0, kMaxLayers);
  if (shared >= n_layers) {
    config.at("num_kv_shared_layers").fail(fmt::format("of {} layers none has a cache", n_layers));
  }
  return n_layers - shared;
}

}  // namespace

Llm read_gemma4(const Field& config) {
  Llm llm = read_outline(config, true);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = read_layer_count(config);
  const std::vector<std::int32_t> windows = read_windows(config, Window::kFiveOfSix, n_layers);
  const AttentionSpec sliding = read_grouped_heads(config, llm.d_model);
  AttentionSpec global = sliding;
  global.head_dim = count_or(config, "global_head_dim", sliding.head_dim, 1, kLargestHead);
  global.v_head_dim = global.head_dim;
  const bool k_eq_v = flag(config, "attention_k_eq_v", false);
  if (const auto heads = config.find("num_global_key_value_heads"); heads && k_eq_v) {
    set_kv_heads(global, *heads);
  }
  global.has_v_weights = !k_eq_v;
  const std::int32_t shared = first_shared(config, 0, n_layers);
  const bool has_experts = flag(config, "enable_moe_block", false);
  const bool is_wide = flag(config, "use_double_wide_mlp", false);
  const std::int32_t d_ff = count(config.at("intermediate_size"), 1, kLargestFfn / 2);
  MlpSpec experts;
  if (has_experts) {  // in addition to the dense block, which every token visits
    experts = read_feed_forward(config, n_layers).sparse;
    experts.shared_d_ff = d_ff;
  }
  const std::int64_t per_layer =
      count_or(config, "hidden_size_per_layer_input", 0, 0, kLargestWidth);

  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer;
    const std::int32_t window = windows[static_cast<std::size_t>(l)];
    layer.attention = window > 0 ? sliding : global;
    layer.attention.window = window;
    const bool is_shared = l >= shared;
    layer.attention.shares_cache = is_shared;
    layer.attention.has_kv_weights = !is_shared;
    layer.mlp = has_experts ? experts : MlpSpec{.d_ff = is_wide && is_shared ? 2 * d_ff : d_ff};
    // Norms before and after both blocks, norms on queries and keys, and a scale of the layer.
    llm.extra_parameters += 4 * d + (is_shared ? 1 : 2) * layer.attention.head_dim + 1;
    // Three norms around the experts, the router's scale and a scale per expert.
    if (has_experts) llm.extra_parameters += 3 * d + d + experts.n_experts;
    if (per_layer > 0) {
      // The gate and the projection of the layer's embedding, and a norm.
      llm.extra_parameters += 2 * d * per_layer + d;
      llm.extra_active_parameters += 2 * d * per_layer;
    }
    llm.layers.push_back(layer);
  }
  if (per_layer > 0) {
    const std::int64_t vocabulary =
        count_or(config, "vocab_size_per_layer_input", llm.vocab_size, 1, kLargestVocabulary);
    const std::int64_t width = n_layers * per_layer;
    llm.extra_parameters += vocabulary * width + d * width + per_layer;
    llm.extra_active_parameters += d * width;
  }
  llm.extra_parameters += d;
  return llm;
}

/// Reads Gemma 3n. Its files omit values equal to the defaults of Gemma3nTextConfig.
Llm read_gemma3n(const Field& config) {
  Llm llm;
  llm.d_model = count_or(config, "hidden_size", 2048, 1, kLargestWidth);
  llm.vocab_size = count_or(config, "vocab_size", 262400, 1, kLargestVocabulary);
  llm.max_positions = count_or(config, "max_position_embeddings", 32768, 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", true);
  llm.rope_theta = rope_theta(config, {"rope_theta"}, 1000000);
  const std::int64_t d = llm.d_model;
  const std::int32_t n_layers = count_or(config, "num_hidden_layers", 35, 1, kMaxLayers);
  AttentionSpec attention;
  attention.n_heads = count_or(config, "num_attention_heads", 8, 1, kMaxHeads);
  attention.head_dim = count_or(config, "head_dim", 256, 1, kLargestHead);
  attention.v_head_dim = attention.head_dim;
  attention.n_kv_heads = count_or(config, "num_key_value_heads", 2, 1, kMaxHeads);
  if (attention.n_heads % attention.n_kv_heads != 0) {
    config.at("num_key_value_heads")
        .fail(fmt::format("does not divide {} heads", attention.n_heads));
  }
  const std::vector<std::int32_t> windows = read_windows(config, Window::kFourOfFive, n_layers);
  const std::int32_t shared = first_shared(config, 15, n_layers);
  std::vector<std::int32_t> widths(static_cast<std::size_t>(n_layers), 16384);
  if (const auto width = config.find("intermediate_size")) {
    if (width->is_array()) {
      widths = layer_numbers(*width, n_layers, 1, kLargestFfn);
    } else {
      widths.assign(widths.size(), count(*width, 1, kLargestFfn));
    }
  }
  const std::int64_t streams = count_or(config, "altup_num_inputs", 4, 1, 64);
  const std::int64_t laurel = count_or(config, "laurel_rank", 64, 0, kLargestWidth);
  const std::int64_t per_layer =
      count_or(config, "hidden_size_per_layer_input", 256, 0, kLargestWidth);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.attention = attention};
    layer.attention.window = windows[static_cast<std::size_t>(l)];
    layer.attention.shares_cache = l >= shared;
    layer.mlp.d_ff = widths[static_cast<std::size_t>(l)];
    // LAuReL's two matrices; the gate and projection of the layer's embedding; AltUp's prediction,
    // correction and router.
    const std::int64_t matrices = 2 * d * laurel + 2 * d * per_layer + streams * streams * streams +
                                  streams * streams + d * streams;
    // Norms around both blocks, of LAuReL, of AltUp's router, of the embedding, on queries and
    // keys, and the scale of the corrected output.
    llm.extra_parameters += matrices + 7 * d + 2 * std::int64_t{attention.head_dim} + d;
    llm.extra_active_parameters += matrices;
    llm.layers.push_back(layer);
  }
  const std::int64_t vocabulary =
      count_or(config, "vocab_size_per_layer_input", 262144, 1, kLargestVocabulary);
  const std::int64_t width = n_layers * per_layer;
  const std::int64_t outer = d * width + 2 * (streams - 1) * d * d;
  llm.extra_parameters += vocabulary * width + outer + per_layer + d;
  llm.extra_active_parameters += outer;
  for (const char* key : {"vocab_size", "intermediate_size", "max_position_embeddings"}) {
    if (!config.has(key)) {
      llm.notes.push_back(fmt::format("{} is not given: the family's default is assumed", key));
    }
  }
  return llm;
}

}  // namespace kvsim::hf
