// Short convolutions with full attention in some layers: LFM2.

#include <cmath>

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"

namespace kvsim::hf {
namespace {

/// Returns the width of the feed-forward block: two thirds of the given width, times a factor,
/// rounded up to a multiple, as in transformers' Lfm2MLP.
std::int32_t block_width(const Field& config) {
  const char* key = config.has("block_ff_dim") ? "block_ff_dim" : "intermediate_size";
  std::int64_t width = count(config.at(key), 1, kLargestWidth);
  if (flag(config, "block_auto_adjust_ff_dim", true)) {
    width = 2 * width / 3;
    if (const auto factor = config.find("block_ffn_dim_multiplier")) {
      width = static_cast<std::int64_t>(factor->number(0, 1e3) * static_cast<double>(width));
    }
    const std::int64_t of = count_or(config, "block_multiple_of", 256, 1, kLargestWidth);
    width = (width + of - 1) / of * of;
  }
  return static_cast<std::int32_t>(width);
}

Llm read_lfm2(const Field& config) {
  Llm llm = read_outline(config, flag(config, "tie_embedding", true));
  const std::int32_t n_layers = read_layer_count(config);
  const AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  const StateSpec convolution{.kind = StateKind::kShortConv,
                              .n_heads = llm.d_model,
                              .conv_kernel = count_or(config, "conv_L_cache", 3, 2, kLargestHead)};
  const Field types = config.at("layer_types");
  const std::vector<Field> items = types.items();
  for (const std::string& word : layer_words(types, n_layers)) {
    LayerSpec layer{.mlp = {.d_ff = block_width(config)}};
    llm.extra_parameters += 2 * std::int64_t{llm.d_model};
    if (word == "full_attention") {
      layer.attention = attention;
      llm.extra_parameters += 2 * std::int64_t{attention.head_dim};  // norms on queries and keys
    } else if (word == "conv") {
      layer.state = convolution;
    } else {
      refuse_word(items[llm.layers.size()], "full_attention, conv");
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += llm.d_model;
  return llm;
}

}  // namespace

Family lfm2_family() {
  return {.model_type = "lfm2",
          .architectures = {"Lfm2ForCausalLM"},
          .read = read_lfm2,
          .reads = {"conv_L_cache", "block_auto_adjust_ff_dim", "block_ff_dim",
                    "block_ffn_dim_multiplier"},
          .checkpoint = {.renames = {{"mlp.", "feed_forward."}}}};
}

}  // namespace kvsim::hf
