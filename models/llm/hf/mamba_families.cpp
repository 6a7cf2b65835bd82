// Mamba layers mixed with attention: Nemotron-H and Nemotron 3, Granite 4, Falcon-H1, Bamba, Jamba.

#include <string>

#include <fmt/format.h>

#include "models/llm/hf/families.hpp"
#include "models/llm/hf/keys.hpp"
#include "models/llm/hf/outline.hpp"

namespace kvsim::hf {
namespace {

std::int64_t inner_width(const StateSpec& s) { return std::int64_t{s.n_heads} * s.value_dim; }
std::int64_t conv_channels(const StateSpec& s) {
  return inner_width(s) + 2 * std::int64_t{s.n_groups} * s.key_dim;
}

/// Vectors of a Mamba 2 block: the convolution's bias, decay, skip and step bias per head, the norm
/// before the output projection, biases of both projections.
struct Mamba2Vectors {
  bool conv_bias = true;
  bool norm = true;
  bool projection_bias = false;
};
std::int64_t vectors_of(const StateSpec& s, std::int64_t d_model, const Mamba2Vectors& has) {
  std::int64_t out = 3 * std::int64_t{s.n_heads};
  if (has.conv_bias) out += conv_channels(s);
  if (has.norm) out += inner_width(s);
  if (has.projection_bias) out += inner_width(s) + conv_channels(s) + s.n_heads + d_model;
  return out;
}

/// Reads the keys of Granite, Bamba and Falcon-H1. `inner`: channels of all heads.
StateSpec read_mamba2(const Field& config, std::int64_t inner) {
  StateSpec s{.kind = StateKind::kMamba2, .dtype = state_dtype(config)};
  s.n_heads = count(config.at("mamba_n_heads"), 1, kMaxHeads);
  const auto head = config.find("mamba_d_head");
  if (head && head->is_number()) {
    s.value_dim = count(*head, 1, kLargestHead);
  } else {  // "auto"
    if (inner % s.n_heads != 0) {
      config.at("mamba_n_heads").fail(fmt::format("does not divide {} channels", inner));
    }
    s.value_dim = static_cast<std::int32_t>(inner / s.n_heads);
  }
  s.n_groups = count_or(config, "mamba_n_groups", 1, 1, kMaxHeads);
  s.key_dim = count(config.at("mamba_d_state"), 1, kLargestHead);
  s.conv_kernel = count_or(config, "mamba_d_conv", 4, 2, kLargestHead);
  return s;
}

Mamba2Vectors read_vectors(const Field& config) {
  return {.conv_bias = flag(config, "mamba_conv_bias", true),
          .norm = flag(config, "mamba_rms_norm", true),
          .projection_bias = flag(config, "mamba_proj_bias", false)};
}

/// Returns the blocks of a Nemotron model, one letter each: M Mamba, * attention, E experts, -
/// dense.
std::string nemotron_blocks(const Field& config, std::int32_t n_layers) {
  if (const auto pattern = config.find("hybrid_override_pattern")) {
    const std::string word = pattern->string();
    std::string blocks;
    for (const char c : word) {
      if (c == '|') continue;  // marks pipeline stages
      if (std::string_view{"M*E-"}.find(c) == std::string_view::npos) {
        pattern->expected("blocks of the letters M, *, E and -");
      }
      blocks += c;
    }
    if (std::ssize(blocks) != n_layers) {
      pattern->fail(fmt::format("{} blocks for {} layers", blocks.size(), n_layers));
    }
    return blocks;
  }
  const Field types = any_of(config, {"layers_block_type", "layer_types"});
  const std::vector<Field> items = types.items();
  std::string blocks;
  for (const std::string& word : layer_words(types, n_layers)) {
    if (word == "mamba" || word == "mamba2") {
      blocks += 'M';
    } else if (word == "attention" || word == "full_attention") {
      blocks += '*';
    } else if (word == "moe") {
      blocks += 'E';
    } else if (word == "mlp") {
      blocks += '-';
    } else {
      refuse_word(items[blocks.size()], "mamba, attention, moe, mlp");
    }
  }
  return blocks;
}

/// Returns the layers with attention, by a list or else by a period and an offset.
std::vector<bool> attention_layers(const Field& config, std::int32_t n_layers) {
  std::vector<bool> out(static_cast<std::size_t>(n_layers), false);
  for (const char* key : {"layer_types", "layers_block_type"}) {
    const auto types = config.find(key);
    if (!types) continue;
    const std::vector<Field> items = types->items();
    const std::vector<std::string> words = layer_words(*types, n_layers);
    for (std::size_t l = 0; l < words.size(); ++l) {
      if (words[l] != "mamba" && words[l] != "attention") refuse_word(items[l], "mamba, attention");
      out[l] = words[l] == "attention";
    }
    return out;
  }
  if (const auto list = config.find("attn_layer_indices")) {
    for (const Field& layer : list->items()) {
      out[static_cast<std::size_t>(layer.integer(0, n_layers - 1))] = true;
    }
    return out;
  }
  const std::int32_t period = count(config.at("attn_layer_period"), 1, kMaxLayers);
  const std::int32_t offset = count_or(config, "attn_layer_offset", 0, 0, kMaxLayers);
  for (std::int32_t l = offset; l < n_layers; l += period) out[static_cast<std::size_t>(l)] = true;
  return out;
}

}  // namespace

/// Every block is a separate layer: a norm, then Mamba 2, attention, experts or a dense block.
Llm read_nemotron_h(const Field& config) {
  Llm llm = read_outline(config, false);
  llm.rope_theta = 0;  // Mamba layers encode the positions
  const std::int32_t n_layers = read_layer_count(config);
  const std::int64_t d = llm.d_model;
  const std::string blocks = nemotron_blocks(config, n_layers);
  const bool has_experts = blocks.find('E') != std::string::npos;

  const AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  StateSpec state{.kind = StateKind::kMamba2, .dtype = state_dtype(config)};
  state.n_heads = count(config.at("mamba_num_heads"), 1, kMaxHeads);
  state.value_dim = count(config.at("mamba_head_dim"), 1, kLargestHead);
  state.n_groups = count(config.at("n_groups"), 1, kMaxHeads);
  state.key_dim = count(config.at("ssm_state_size"), 1, kLargestHead);
  state.conv_kernel = count_or(config, "conv_kernel", 4, 2, kLargestHead);
  const Mamba2Vectors vectors{.conv_bias = flag(config, "use_conv_bias", true),
                              .projection_bias = flag(config, "mamba_proj_bias", false)};
  MlpSpec dense{.d_ff = count(config.at("intermediate_size"), 1, kLargestFfn), .gated = false};
  MlpSpec sparse;
  if (has_experts) sparse = read_feed_forward(config, n_layers).sparse;
  sparse.gated = false;

  for (const char block : blocks) {
    LayerSpec layer;
    llm.extra_parameters += d;
    if (block == 'M') {
      layer.state = state;
      llm.extra_parameters += vectors_of(state, d, vectors);
    } else if (block == '*') {
      layer.attention = attention;
    } else if (block == 'E') {
      layer.mlp = sparse;
      add_router_bias(sparse, llm);
    } else {
      layer.mlp = dense;
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  return llm;
}

/// Granite 4 (GraniteMoeHybrid): Mamba 2 or attention, then experts and a shared block, or only the
/// shared block.
Llm read_granite_hybrid(const Field& config) {
  Llm llm = read_outline(config, true);
  if (const auto positions = config.find("position_embedding_type")) {
    if (positions->string() == "nope") llm.rope_theta = 0;
  }
  const std::int32_t n_layers = read_layer_count(config);
  const std::int64_t d = llm.d_model;
  const AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  const StateSpec state =
      read_mamba2(config, count_or(config, "mamba_expand", 2, 1, 64) * std::int64_t{llm.d_model});
  const Mamba2Vectors vectors{.conv_bias = flag(config, "mamba_conv_bias", true),
                              .projection_bias = flag(config, "mamba_proj_bias", false)};
  MlpSpec mlp{.d_ff = count(config.at("shared_intermediate_size"), 1, kLargestFfn)};
  if (count_or(config, "num_local_experts", 0, 0, kMaxExperts) > 0) {
    mlp = read_feed_forward(config, n_layers).sparse;
  }
  const std::vector<bool> is_attention = attention_layers(config, n_layers);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.mlp = mlp};
    llm.extra_parameters += 2 * d;
    if (is_attention[static_cast<std::size_t>(l)]) {
      layer.attention = attention;
    } else {
      layer.state = state;
      llm.extra_parameters += vectors_of(state, d, vectors);
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  return llm;
}

/// Bamba: Mamba 2 or attention, then a dense block.
Llm read_bamba(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int32_t n_layers = read_layer_count(config);
  const std::int64_t d = llm.d_model;
  const AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  const StateSpec state =
      read_mamba2(config, count_or(config, "mamba_expand", 2, 1, 64) * std::int64_t{llm.d_model});
  const MlpSpec mlp{.d_ff = count(config.at("intermediate_size"), 1, kLargestFfn)};
  const std::vector<bool> is_attention = attention_layers(config, n_layers);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.mlp = mlp};
    llm.extra_parameters += 2 * d;
    if (is_attention[static_cast<std::size_t>(l)]) {
      layer.attention = attention;
    } else {
      layer.state = state;
      llm.extra_parameters += vectors_of(state, d, read_vectors(config));
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  return llm;
}

/// Falcon-H1: every layer has attention and Mamba 2 in parallel, then a dense block.
Llm read_falcon_h1(const Field& config) {
  Llm llm = read_outline(config, false);
  const std::int32_t n_layers = read_layer_count(config);
  const std::int64_t d = llm.d_model;
  LayerSpec layer;
  layer.attention = read_grouped_heads(config, llm.d_model);
  const auto given = config.find("mamba_d_ssm");
  const std::int64_t inner =
      given ? given->integer(1, kLargestFfn) : count_or(config, "mamba_expand", 2, 1, 64) * d;
  layer.state = read_mamba2(config, inner);
  layer.mlp.d_ff = count(config.at("intermediate_size"), 1, kLargestFfn);
  Mamba2Vectors vectors{.conv_bias = flag(config, "mamba_conv_bias", true),
                        .norm = flag(config, "mamba_rms_norm", false),
                        .projection_bias = flag(config, "mamba_proj_bias", false) ||
                                           flag(config, "projectors_bias", false)};
  llm.layers.assign(static_cast<std::size_t>(n_layers), layer);
  llm.extra_parameters = n_layers * (2 * d + vectors_of(layer.state, d, vectors)) + d;
  return llm;
}

/// Jamba: Mamba 1 or attention, then a dense block or experts.
Llm read_jamba(const Field& config) {
  Llm llm = read_outline(config, false);
  llm.rope_theta = 0;
  const std::int32_t n_layers = read_layer_count(config);
  const std::int64_t d = llm.d_model;
  const AttentionSpec attention = read_grouped_heads(config, llm.d_model);
  StateSpec state{.kind = StateKind::kMamba1, .value_dim = 1, .dtype = state_dtype(config)};
  state.n_heads = static_cast<std::int32_t>(count_or(config, "mamba_expand", 2, 1, 64) * d);
  state.key_dim = count_or(config, "mamba_d_state", 16, 1, kLargestHead);
  state.conv_kernel = count_or(config, "mamba_d_conv", 4, 2, kLargestHead);
  const auto rank = config.find("mamba_dt_rank");
  state.gate_rank = rank && rank->is_number() ? count(*rank, 1, kLargestWidth)
                                              : static_cast<std::int32_t>((d + 15) / 16);
  const std::int64_t channels = state.n_heads;
  // Norms on step, B and C; bias of the step; decay and skip; biases by their keys.
  std::int64_t vectors = state.gate_rank + 2 * std::int64_t{state.key_dim} + channels +
                         channels * state.key_dim + channels;
  if (flag(config, "mamba_conv_bias", true)) vectors += channels;
  if (flag(config, "mamba_proj_bias", false)) vectors += 2 * channels + d;

  // One expert is a dense block.
  const MlpSpec dense{.d_ff = count(config.at("intermediate_size"), 1, kLargestFfn)};
  const FeedForward blocks = read_feed_forward(config, n_layers);
  const bool has_experts = blocks.sparse.n_experts > 1;
  const std::vector<bool> is_attention = attention_layers(config, n_layers);
  for (std::int32_t l = 0; l < n_layers; ++l) {
    LayerSpec layer{.mlp = has_experts ? blocks.of(l) : dense};
    llm.extra_parameters += 2 * d;
    if (is_attention[static_cast<std::size_t>(l)]) {
      layer.attention = attention;
    } else {
      layer.state = state;
      llm.extra_parameters += vectors;
    }
    llm.layers.push_back(layer);
  }
  llm.extra_parameters += d;
  return llm;
}

}  // namespace kvsim::hf
