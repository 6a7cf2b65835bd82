#include "models/llm/hf/outline.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/llm/hf/keys.hpp"

namespace kvsim::hf {
namespace {

/// Returns the first of `keys` in the file; nullopt if it has none.
template <std::size_t N>
std::optional<Field> first_of(const Field& config, const std::array<std::string_view, N>& keys) {
  for (const std::string_view key : keys) {
    if (const auto found = config.find(key)) return found;
  }
  return std::nullopt;
}

/// The same; returns the first of `keys`, as missing, if the file has none.
template <std::size_t N>
Field required_of(const Field& config, const std::array<std::string_view, N>& keys) {
  const auto found = first_of(config, keys);
  return found ? *found : config.at(keys.front());
}

// Alternative names of keys.
constexpr std::array<std::string_view, 4> kExperts{"num_experts", "num_local_experts",
                                                   "n_routed_experts", "moe_num_experts"};
constexpr std::array<std::string_view, 5> kVisited{"num_experts_per_tok", "num_experts_per_token",
                                                   "top_k_experts", "experts_per_token",
                                                   "moe_top_k"};
constexpr std::array<std::string_view, 3> kDenseWidth{"dense_intermediate_size",
                                                      "intermediate_size_mlp", "intermediate_size"};
constexpr std::array<std::string_view, 2> kExpertWidth{"moe_intermediate_size",
                                                       "intermediate_size"};
constexpr std::array<std::string_view, 2> kSharedCount{"n_shared_experts", "num_shared_experts"};
constexpr std::array<std::string_view, 3> kSharedWidth{
    "shared_expert_intermediate_size", "shared_intermediate_size", "share_expert_dim"};
constexpr std::array<std::string_view, 2> kLatentWidth{"moe_latent_size",
                                                       "routed_expert_hidden_size"};

std::int32_t shared_width(const Field& config, std::int32_t expert_width) {
  const auto n = first_of(config, kSharedCount);
  const std::int64_t experts = n ? n->integer(0, kMaxExperts) : 0;
  if (const auto one = config.find("moe_shared_expert_intermediate_size")) {
    return static_cast<std::int32_t>(experts * count(*one, 0, kLargestFfn));
  }
  // A width of 0 means that there are none.
  if (const auto all = first_of(config, kSharedWidth)) return count(*all, 0, kLargestFfn);
  if (experts * expert_width > kLargestFfn) {
    n->fail(fmt::format("{} shared experts of width {}", experts, expert_width));
  }
  return static_cast<std::int32_t>(experts * expert_width);
}

/// Returns the layers with experts, by the first of several keys in the file.
std::vector<bool> sparse_layers(const Field& config, std::int32_t n_layers) {
  std::vector<bool> out(static_cast<std::size_t>(n_layers), true);
  const auto fill = [&](auto&& is_sparse) {
    for (std::int32_t l = 0; l < n_layers; ++l) out[static_cast<std::size_t>(l)] = is_sparse(l);
    return out;
  };
  if (const auto types = config.find("mlp_layer_types")) {
    const std::vector<std::string> words = layer_words(*types, n_layers);
    return fill([&](std::int32_t l) {
      const std::string& word = words[static_cast<std::size_t>(l)];
      if (word != "dense" && word != "sparse") {
        refuse_word(types->items()[static_cast<std::size_t>(l)], "dense, sparse");
      }
      return word == "sparse";
    });
  }
  if (const auto list = config.find("moe_layers")) {
    out.assign(out.size(), false);
    for (const Field& layer : list->items()) {
      out[static_cast<std::size_t>(layer.integer(0, n_layers - 1))] = true;
    }
    return out;
  }
  if (const auto list = config.find("moe_layers_enum")) {  // "3,4,5"
    out.assign(out.size(), false);
    std::string text = list->string();
    std::replace(text.begin(), text.end(), ',', ' ');
    std::istringstream words{text};
    for (std::int64_t layer = 0; words >> layer;) {
      if (layer < 0 || layer >= n_layers) {
        list->fail(fmt::format("layer {} of {}", layer, n_layers));
      }
      out[static_cast<std::size_t>(layer)] = true;
    }
    if (!words.eof()) list->expected("numbers of layers with commas between them");
    return out;
  }
  const auto freq = config.find("moe_layer_freq");
  if (freq && freq->is_array()) {
    const std::vector<std::int32_t> marks = layer_numbers(*freq, n_layers, 0, 1);
    return fill([&](std::int32_t l) { return marks[static_cast<std::size_t>(l)] == 1; });
  }
  if (config.has("expert_layer_period")) {
    const std::int32_t period = count(config.at("expert_layer_period"), 1, kMaxLayers);
    const std::int32_t offset = count_or(config, "expert_layer_offset", 0, 0, kMaxLayers);
    return fill([&](std::int32_t l) { return (l - offset) % period == 0 && l >= offset; });
  }
  if (config.has("interleave_moe_layer_step")) {
    const std::int32_t step = count(config.at("interleave_moe_layer_step"), 1, kMaxLayers);
    return fill([&](std::int32_t l) { return (l + 1) % step == 0; });
  }
  if (config.has("first_k_dense_replace") || freq) {
    const std::int32_t first = count_or(config, "first_k_dense_replace", 0, 0, kMaxLayers);
    const std::int32_t step = freq ? count(*freq, 1, kMaxLayers) : 1;
    return fill([&](std::int32_t l) { return l >= first && l % step == 0; });
  }
  const std::int32_t step = count_or(config, "decoder_sparse_step", 1, 1, kMaxLayers);
  fill([&](std::int32_t l) { return (l + 1) % step == 0; });
  if (const auto only = config.find("mlp_only_layers")) {
    for (const Field& layer : only->items()) {
      const std::int64_t l = layer.integer(0, kMaxLayers);
      if (l < n_layers) out[static_cast<std::size_t>(l)] = false;
    }
  }
  return out;
}

}  // namespace

Llm read_outline(const Field& config, bool tied_otherwise) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions =
      count(any_of(config, {"max_position_embeddings", "model_max_length"}), 1, kMaxPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", tied_otherwise);
  llm.rope_theta = rope_theta(config, {"rope_theta"}, 10000);
  return llm;
}

std::int32_t read_layer_count(const Field& config) {
  return count(config.at("num_hidden_layers"), 1, kMaxLayers);
}

AttentionSpec read_grouped_heads(const Field& config, std::int32_t d_model) {
  AttentionSpec out = read_heads(config, config.at("num_attention_heads"), d_model,
                                 {"head_dim", "attention_head_dim"});
  if (const auto kv = config.find("num_key_value_heads")) set_kv_heads(out, *kv);
  out.v_head_dim = count_or(config, "v_head_dim", out.head_dim, 1, kLargestHead);
  return out;
}

AttentionSpec read_latent_heads(const Field& config) {
  AttentionSpec out;
  out.n_heads = count(config.at("num_attention_heads"), 1, kMaxHeads);
  out.n_kv_heads = out.n_heads;
  if (const auto kv = config.find("num_key_value_heads")) set_kv_heads(out, *kv);
  out.kv_lora_rank = count(config.at("kv_lora_rank"), 1, kLargestHead);
  out.q_lora_rank = count_or(config, "q_lora_rank", 0, 1, kLargestWidth);
  out.rope_head_dim = count(config.at("qk_rope_head_dim"), 1, kLargestHead / 2);
  out.head_dim = count(config.at("qk_nope_head_dim"), 1, kLargestHead / 2) + out.rope_head_dim;
  out.v_head_dim = count(config.at("v_head_dim"), 1, kLargestHead);
  return out;
}

std::int64_t latent_norms(const AttentionSpec& attention) {
  return attention.kv_lora_rank + attention.q_lora_rank;
}

void add_router_bias(const MlpSpec& mlp, Llm& llm) {
  constexpr std::int64_t kBytesBeyond16Bits = 2;
  llm.extra_parameters += mlp.n_experts;
  llm.extra_bytes += kBytesBeyond16Bits * mlp.n_experts;
}

std::vector<std::string> layer_words(const Field& list, std::int32_t n_layers) {
  const std::vector<Field> items = list.items();
  if (std::ssize(items) != n_layers) {
    list.fail(fmt::format("{} entries for {} layers", items.size(), n_layers));
  }
  std::vector<std::string> out;
  for (const Field& item : items) out.push_back(item.string());
  return out;
}

std::vector<std::int32_t> layer_numbers(const Field& list, std::int32_t n_layers, std::int64_t low,
                                        std::int64_t high) {
  const std::vector<Field> items = list.items();
  if (std::ssize(items) != n_layers) {
    list.fail(fmt::format("{} entries for {} layers", items.size(), n_layers));
  }
  std::vector<std::int32_t> out;
  for (const Field& item : items) out.push_back(count(item, low, high));
  return out;
}

void refuse_word(const Field& item, std::string_view known) {
  item.fail(fmt::format("layers of type {} are not modelled ({})",
                        item.is_string() ? "\"" + item.string().substr(0, 60) + "\"" : "so written",
                        known));
}

Dtype plain_dtype(const Field& config) {
  for (const char* key : {"torch_dtype", "dtype"}) {
    const auto word = config.find(key);
    if (!word) continue;
    std::string name = word->string();
    if (name.starts_with("torch.")) name.erase(0, 6);
    if (const auto dtype = parse_dtype(name)) return *dtype;
    word->expected("a dtype such as \"bfloat16\"");
  }
  if (flag(config, "fp16", false)) return Dtype::kFp16;
  if (flag(config, "fp32", false)) return Dtype::kFp32;
  return Dtype::kBf16;
}

Dtype state_dtype(const Field& config) {
  for (const char* key : {"mamba_ssm_cache_dtype", "mamba_ssm_dtype"}) {
    const auto word = config.find(key);
    if (!word) continue;
    const std::string name = word->string();
    if (name == "auto") continue;
    if (const auto dtype = parse_dtype(name)) return *dtype;
    word->expected("a dtype such as \"float32\"");
  }
  return plain_dtype(config);
}

FeedForward read_feed_forward(const Field& config, std::int32_t n_layers) {
  FeedForward out;
  out.is_sparse.assign(static_cast<std::size_t>(n_layers), false);
  const auto experts = first_of(config, kExperts);
  const std::int32_t n_experts = experts ? count(*experts, 0, kMaxExperts) : 0;
  if (n_experts > 0) {
    MlpSpec& mlp = out.sparse;
    mlp.n_experts = n_experts;
    const Field visited = required_of(config, kVisited);
    mlp.top_k = count(visited, 1, kMaxExperts);
    if (mlp.top_k > mlp.n_experts) {
      visited.fail(fmt::format("a token visits {} of {} experts", mlp.top_k, mlp.n_experts));
    }
    mlp.d_ff = count(required_of(config, kExpertWidth), 1, kLargestFfn);
    mlp.shared_d_ff = shared_width(config, mlp.d_ff);
    if (const auto latent = first_of(config, kLatentWidth)) {
      mlp.latent_dim = count(*latent, 0, kLargestWidth);
    }
    out.is_sparse = sparse_layers(config, n_layers);
  }
  const bool has_dense =
      std::find(out.is_sparse.begin(), out.is_sparse.end(), false) != out.is_sparse.end();
  if (has_dense) {
    out.dense.d_ff = count(required_of(config, kDenseWidth), 1, kLargestFfn);
  }
  return out;
}

}  // namespace kvsim::hf
