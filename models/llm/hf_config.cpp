// Reads Hugging Face `config.json` files. What decides the size of a cache or of the weights is
// read here family by family, as the family's own modelling code does it; every other key of these
// files is left alone. docs/models.md lists the families.

#include <algorithm>
#include <array>
#include <string>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "models/llm/catalogue.hpp"
#include "models/units/error.hpp"

namespace kvsim {
namespace {

// Bounds of what is believed. They keep every count below 2^63 and catch slips of the pen; the
// largest published models stay a factor of 8 below each.
constexpr std::int64_t kMostLayers = 1024;
constexpr std::int64_t kMostHeads = 4096;
constexpr std::int64_t kLargestHead = 8192;
constexpr std::int64_t kLargestWidth = 1 << 17;
constexpr std::int64_t kLargestFfn = 1 << 20;
constexpr std::int64_t kMostExperts = 4096;
constexpr std::int64_t kLargestVocabulary = 1 << 24;
constexpr std::int64_t kMostPositions = 1 << 30;
constexpr std::int64_t kMostParameters = 1'000'000'000'000'000;

/// Which linear layers of attention have a bias.
enum class AttentionBias : std::uint8_t {
  kNone,
  kQkv,         // Q, K and V, always (Qwen2)
  kByKeyQkv,    // Q, K and V if `attention_bias`
  kByKeyQkvOut  // Q, K, V and the output if `attention_bias`
};

/// Which layers see only `sliding_window` tokens when the file has no `layer_types`.
enum class Window : std::uint8_t {
  kNone,       // the family's code knows no window
  kEvery,      // every layer, where `sliding_window` is given
  kEvery4096,  // the same; the window is 4096 where the key is absent (Mistral)
  kUpper,      // layers from `max_window_layers` on, if `use_sliding_window` (Qwen2)
  kAlternate,  // layers 0, 2, 4, … (Gemma 2, gpt-oss)
  kFiveOfSix   // all but each `sliding_window_pattern`-th (Gemma 3)
};

enum class Experts : std::uint8_t { kNone, kMixtral, kGptOss, kQwen2, kQwen3, kDeepSeek };

/// What sets a family of the Llama build (RMSNorm, gated block, no position table) apart.
struct Traits {
  std::int32_t norms_per_layer = 2;
  bool qk_norm = false;  // one norm weight of head_dim on Q and one on K
  AttentionBias bias = AttentionBias::kNone;
  Window window = Window::kNone;
  Experts experts = Experts::kNone;
  bool tied = false;            // where `tie_word_embeddings` is absent
  std::int64_t vocab_size = 0;  // where `vocab_size` is absent (Gemma 3); 0: it is required
  std::int64_t head_dim = 0;    // where `head_dim` is absent; 0: d_model / n_heads
  std::int64_t n_heads = 0;     // where the count of heads is absent; 0: it is required
  std::int64_t n_kv_heads = 0;  // where that of cached heads is absent; 0: as many as heads
  std::int64_t positions = 0;   // where max_position_embeddings is absent; 0: it is required
};

std::int32_t count(const Field& value, std::int64_t low, std::int64_t high) {
  return static_cast<std::int32_t>(value.integer(low, high));
}

/// The first of `keys` the file has; its first key, as missing, if it has none.
Field any_of(const Field& config, std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (const auto found = config.find(key)) return *found;
  }
  return config.at(*keys.begin());
}

bool flag(const Field& config, std::string_view key, bool otherwise) {
  const auto found = config.find(key);
  return found ? found->boolean() : otherwise;
}

std::int32_t count_or(const Field& config, std::string_view key, std::int64_t otherwise,
                      std::int64_t low, std::int64_t high) {
  const auto found = config.find(key);
  return found ? count(*found, low, high) : static_cast<std::int32_t>(otherwise);
}

/// Keys that change what a layer caches in ways this program does not model.
void refuse_what_is_not_modelled(const Field& config) {
  struct Refused {
    std::string_view key;
    std::string_view why;
  };
  constexpr std::array kRefused{
      Refused{"attention_chunk_size", "chunked attention"},
      Refused{"cross_attention_layers", "cross-attention to cached image states"},
      Refused{"num_kv_shared_layers", "layers that share one cache"},
      Refused{"cla_share_factor", "layers that share one cache"},
      Refused{"index_topk", "a sparse-attention indexer with a cache of its own"},
      Refused{"full_attention_interval", "linear-attention layers"},
      Refused{"linear_num_value_heads", "linear-attention layers"},
      Refused{"linear_attn_config", "linear-attention layers"},
      Refused{"attn_type_list", "linear-attention layers"},
      Refused{"layers_block_type", "state-space or recurrent layers"},
      Refused{"block_types", "state-space or recurrent layers"},
      Refused{"attn_layer_period", "state-space or recurrent layers"},
      Refused{"hybrid_override_pattern", "state-space or recurrent layers"},
      Refused{"mamba_d_state", "state-space or recurrent layers"},
      Refused{"state_size", "state-space or recurrent layers"},
      Refused{"ssm_state_size", "state-space or recurrent layers"},
      Refused{"ssm_cfg", "state-space or recurrent layers"},
      Refused{"is_encoder_decoder", "an encoder and cross-attention"},
  };
  for (const auto& [key, why] : kRefused) {
    const auto found = config.find(key);
    if (!found) continue;
    const nlohmann::json& value = found->raw();
    if (value == false || value == 0 || ((value.is_array() || value.is_object()) && value.empty()))
      continue;
    found->fail(fmt::format("{} is not modelled", why));
  }
}

/// The format the weights are published in.
Dtype published_dtype(const Field& config) {
  if (const auto quantization = config.find("quantization_config")) {
    const std::string method = quantization->at("quant_method").string();
    if (method == "fp8" || method == "fbgemm_fp8") return Dtype::kFp8E4m3;
    if (method == "mxfp4") return Dtype::kFp4;
    if (method == "gptq" || method == "awq") {
      const std::int64_t bits = quantization->at("bits").integer(2, 8);
      if (bits == 8) return Dtype::kInt8;
      if (bits == 4) return Dtype::kInt4;
      if (bits == 2) return Dtype::kInt2;
      quantization->at("bits").expected("2, 4 or 8");
    }
    if (method == "bitsandbytes") {
      if (flag(*quantization, "load_in_4bit", false)) return Dtype::kInt4;
      if (flag(*quantization, "load_in_8bit", false)) return Dtype::kInt8;
    }
    quantization->at("quant_method")
        .expected("fp8, fbgemm_fp8, mxfp4, gptq, awq or bitsandbytes with load_in_4bit or _8bit");
  }
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

double rope_theta(const Field& config, std::initializer_list<std::string_view> keys,
                  double otherwise) {
  constexpr double kLargest = 1e15;
  for (const std::string_view key : keys) {
    if (const auto theta = config.find(key)) return theta->number(1, kLargest);
  }
  // Newer files keep it inside; with one set a kind of layer, ours is that of full attention.
  if (auto rope = config.find("rope_parameters")) {
    if (const auto full = rope->find("full_attention")) rope = full;
    if (const auto theta = rope->find("rope_theta")) return theta->number(1, kLargest);
  }
  return otherwise;
}

/// Query heads and head width, common to all families but MLA.
AttentionSpec read_heads(const Field& config, const Field& n_heads, std::int32_t d_model,
                         std::initializer_list<std::string_view> head_dim_keys,
                         std::int64_t head_dim_otherwise = 0) {
  AttentionSpec out;
  out.n_heads = count(n_heads, 1, kMostHeads);
  for (const std::string_view key : head_dim_keys) {
    if (out.head_dim != 0) break;
    out.head_dim = count_or(config, key, 0, 1, kLargestHead);
  }
  if (out.head_dim == 0) out.head_dim = static_cast<std::int32_t>(head_dim_otherwise);
  if (out.head_dim == 0) {
    if (d_model % out.n_heads != 0) {
      n_heads.fail(fmt::format("{} heads do not divide the width {}, and head_dim is not given",
                               out.n_heads, d_model));
    }
    out.head_dim = d_model / out.n_heads;
  }
  out.v_head_dim = out.head_dim;
  out.n_kv_heads = out.n_heads;
  return out;
}

/// Cached heads from `value`; they must divide the query heads.
void set_kv_heads(AttentionSpec& attention, const Field& value) {
  attention.n_kv_heads = count(value, 1, kMostHeads);
  if (attention.n_heads % attention.n_kv_heads != 0) {
    value.fail(fmt::format("{} cached heads do not divide {} query heads", attention.n_kv_heads,
                           attention.n_heads));
  }
}

std::int64_t q_width(const AttentionSpec& a) { return std::int64_t{a.n_heads} * a.head_dim; }
std::int64_t kv_width(const AttentionSpec& a) { return std::int64_t{a.n_kv_heads} * a.head_dim; }

// ---- windows -----------------------------------------------------------------------------------

/// Window of each layer, 0 where it sees all.
std::vector<std::int32_t> read_windows(const Field& config, Window policy, std::int32_t n_layers) {
  std::vector<std::int32_t> out(static_cast<std::size_t>(n_layers), 0);
  const auto given = config.find("sliding_window");
  std::int32_t window = given ? count(*given, 1, kMostPositions) : 0;
  const bool upper_off = policy == Window::kUpper && !flag(config, "use_sliding_window", false);
  if (upper_off) window = 0;

  if (const auto types = config.find("layer_types")) {
    const std::vector<Field> items = types->items();
    if (std::ssize(items) != n_layers)
      types->fail(fmt::format("{} entries for {} layers", items.size(), n_layers));
    for (std::size_t layer = 0; layer < items.size(); ++layer) {
      const std::string word = items[layer].string();
      if (word == "full_attention") continue;
      if (word != "sliding_attention") {
        items[layer].fail(fmt::format(
            "layers of type \"{}\" are not modelled (full_attention, sliding_attention)",
            word.substr(0, 60)));
      }
      if (window == 0) {
        items[layer].fail(upper_off ? "a sliding layer although use_sliding_window is not true"
                                    : "a sliding layer, but sliding_window is not given");
      }
      out[layer] = window;
    }
    return out;
  }

  const auto fill = [&](auto&& slides) {
    for (std::int32_t layer = 0; layer < n_layers; ++layer) {
      if (slides(layer)) out[static_cast<std::size_t>(layer)] = window;
    }
  };
  switch (policy) {
    case Window::kNone:
      if (window > 0) given->fail("the published code of this family has no sliding window");
      break;
    case Window::kEvery4096:
      // null turns the window off; the class default stands where the key is not there at all.
      if (!config.raw().contains("sliding_window")) window = 4096;
      [[fallthrough]];
    case Window::kEvery:
      fill([](std::int32_t) { return true; });
      break;
    case Window::kUpper: {
      if (window == 0) break;
      const std::int32_t first = count(config.at("max_window_layers"), 0, kMostLayers);
      fill([&](std::int32_t layer) { return layer >= first; });
      break;
    }
    case Window::kAlternate:
      if (window == 0) config.at("sliding_window").expected("a window: every other layer slides");
      fill([](std::int32_t layer) { return layer % 2 == 0; });
      break;
    case Window::kFiveOfSix: {
      if (window == 0) config.at("sliding_window").expected("a window: five of six layers slide");
      const std::int32_t pattern =
          count_or(config, "sliding_window_pattern",
                   count_or(config, "_sliding_window_pattern", 6, 1, kMostLayers), 1, kMostLayers);
      fill([&](std::int32_t layer) { return (layer + 1) % pattern != 0; });
      break;
    }
  }
  return out;
}

// ---- experts -----------------------------------------------------------------------------------

struct Block {
  MlpSpec mlp;
  std::int64_t extra = 0;  // biases and gates of one such layer
};

/// The feed-forward block of `layer`.
class Blocks {
 public:
  Blocks(const Field& config, Experts experts, std::int32_t d_model) : experts_{experts} {
    if (experts != Experts::kMixtral && experts != Experts::kGptOss)
      dense_.mlp.d_ff = count(config.at("intermediate_size"), 1, kLargestFfn);
    if (experts == Experts::kNone) return;
    MlpSpec& mlp = sparse_.mlp;
    const bool whole = experts == Experts::kMixtral || experts == Experts::kGptOss;
    const Field n = whole                           ? any_of(config, {"num_local_experts"})
                    : experts == Experts::kDeepSeek ? config.at("n_routed_experts")
                                                    : config.at("num_experts");
    mlp.n_experts = count(n, 1, kMostExperts);
    const Field top = any_of(config, {"num_experts_per_tok", "experts_per_token"});
    mlp.top_k = count(top, 1, kMostExperts);
    if (mlp.top_k > mlp.n_experts)
      top.fail(fmt::format("a token visits {} of {} experts", mlp.top_k, mlp.n_experts));
    mlp.d_ff =
        count(config.at(whole ? "intermediate_size" : "moe_intermediate_size"), 1, kLargestFfn);
    if (experts == Experts::kGptOss) {
      // Biases of the router, of gate and up, and of down.
      sparse_.extra = mlp.n_experts * (1 + 2 * std::int64_t{mlp.d_ff} + d_model);
    } else if (experts == Experts::kQwen2) {
      mlp.shared_d_ff = count(config.at("shared_expert_intermediate_size"), 0, kLargestFfn);
      sparse_.extra = d_model;  // the gate of the shared expert
    } else if (experts == Experts::kDeepSeek) {
      const std::int64_t shared = count_or(config, "n_shared_experts", 0, 0, kMostExperts);
      if (shared * mlp.d_ff > kLargestFfn)
        config.at("n_shared_experts")
            .fail(fmt::format("{} shared experts of width {}", shared, mlp.d_ff));
      mlp.shared_d_ff = static_cast<std::int32_t>(shared * mlp.d_ff);
    }
    if (experts == Experts::kQwen2 || experts == Experts::kQwen3) {
      step_ = count_or(config, "decoder_sparse_step", 1, 1, kMostLayers);
      if (const auto only = config.find("mlp_only_layers")) {
        for (const Field& layer : only->items())
          dense_layers_.push_back(count(layer, 0, kMostLayers));
      }
    } else if (experts == Experts::kDeepSeek) {
      first_sparse_ = count_or(config, "first_k_dense_replace", 0, 0, kMostLayers);
      step_ = count_or(config, "moe_layer_freq", 1, 1, kMostLayers);
    }
  }

  /// Each routed expert has a bias that balances the load (DeepSeek-V3, GLM-4.5).
  void add_router_bias() { sparse_.extra += sparse_.mlp.n_experts; }

  [[nodiscard]] const Block& of(std::int32_t layer) const {
    switch (experts_) {
      case Experts::kNone:
        return dense_;
      case Experts::kMixtral:
      case Experts::kGptOss:
        return sparse_;
      case Experts::kQwen2:
      case Experts::kQwen3:
        return (layer + 1) % step_ == 0 && std::find(dense_layers_.begin(), dense_layers_.end(),
                                                     layer) == dense_layers_.end()
                   ? sparse_
                   : dense_;
      case Experts::kDeepSeek:
        return layer >= first_sparse_ && layer % step_ == 0 ? sparse_ : dense_;
    }
    return dense_;
  }

 private:
  Experts experts_;
  Block dense_;
  Block sparse_;
  std::int32_t step_ = 1;
  std::int32_t first_sparse_ = 0;
  std::vector<std::int32_t> dense_layers_;
};

// ---- families ----------------------------------------------------------------------------------

/// Families of the Llama build.
Llm read_llama_build(const Field& config, const Traits& traits) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = traits.vocab_size > 0 && !config.has("vocab_size")
                       ? static_cast<std::int32_t>(traits.vocab_size)
                       : count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = traits.positions > 0 && !config.has("max_position_embeddings")
                          ? static_cast<std::int32_t>(traits.positions)
                          : count(config.at("max_position_embeddings"), 1, kMostPositions);
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
  if (const auto kv = config.find("num_key_value_heads"))
    set_kv_heads(attention, *kv);
  else if (traits.n_kv_heads > 0 && attention.n_heads % traits.n_kv_heads == 0)
    attention.n_kv_heads = static_cast<std::int32_t>(traits.n_kv_heads);

  const std::int32_t n_layers = count(config.at("num_hidden_layers"), 1, kMostLayers);
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

/// What the older families share: LayerNorm with bias, an ungated block of `d_ff`.
struct Plain {
  std::int64_t norms_per_layer = 2;
  std::int64_t bias_per_layer = 0;
  std::int64_t extra = 0;  // beside the layers and the last norm
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

Llm read_gpt2(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("n_embd"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("n_positions"), 1, kMostPositions);
  llm.learned_positions = llm.max_positions;
  llm.tied_embeddings = flag(config, "tie_word_embeddings", true);
  const AttentionSpec attention = read_heads(config, config.at("n_head"), llm.d_model, {});
  const std::int32_t d_ff = ffn_or_four_widths(config, {"n_inner"}, llm.d_model);
  fill_layers(llm, count(config.at("n_layer"), 1, kMostLayers), attention, d_ff,
              {.bias_per_layer = all_biases(llm, attention, d_ff)});
  return llm;
}

Llm read_gptj(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("n_embd"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("n_positions"), 1, kMostPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = 10000;
  const AttentionSpec attention = read_heads(config, config.at("n_head"), llm.d_model, {});
  const std::int32_t d_ff = ffn_or_four_widths(config, {"n_inner"}, llm.d_model);
  // One norm a layer, biases in the block alone, and a bias on the head.
  fill_layers(llm, count(config.at("n_layer"), 1, kMostLayers), attention, d_ff,
              {.norms_per_layer = 1,
               .bias_per_layer = std::int64_t{d_ff} + llm.d_model,
               .extra = llm.vocab_size});
  return llm;
}

Llm read_gpt_neox(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("max_position_embeddings"), 1, kMostPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = rope_theta(config, {"rotary_emb_base", "rope_theta"}, 10000);
  const AttentionSpec attention =
      read_heads(config, config.at("num_attention_heads"), llm.d_model, {});
  const std::int32_t d_ff = count(config.at("intermediate_size"), 1, kLargestFfn);
  const bool bias = flag(config, "attention_bias", true);
  fill_layers(llm, count(config.at("num_hidden_layers"), 1, kMostLayers), attention, d_ff,
              {.bias_per_layer =
                   bias ? all_biases(llm, attention, d_ff) : std::int64_t{d_ff} + llm.d_model});
  return llm;
}

Llm read_opt(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("max_position_embeddings"), 1, kMostPositions);
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
  fill_layers(llm, count(config.at("num_hidden_layers"), 1, kMostLayers), attention, d_ff,
              {.bias_per_layer = bias ? all_biases(llm, attention, d_ff) : 0});
  return llm;
}

Llm read_bloom(const Field& config) {
  Llm llm;
  llm.d_model = count(any_of(config, {"hidden_size", "n_embed"}), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count_or(config, "seq_length", 2048, 1, kMostPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", true);
  const AttentionSpec attention =
      read_heads(config, any_of(config, {"n_head", "num_attention_heads"}), llm.d_model, {});
  const std::int32_t d_ff = 4 * llm.d_model;
  // A norm on the embeddings as well.
  fill_layers(
      llm, count(any_of(config, {"n_layer", "num_hidden_layers"}), 1, kMostLayers), attention, d_ff,
      {.bias_per_layer = all_biases(llm, attention, d_ff), .extra = 2 * std::int64_t{llm.d_model}});
  return llm;
}

Llm read_falcon(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count_or(config, "max_position_embeddings", 2048, 1, kMostPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", true);
  if (!flag(config, "alibi", false)) llm.rope_theta = rope_theta(config, {"rope_theta"}, 10000);
  AttentionSpec attention =
      read_heads(config, any_of(config, {"num_attention_heads", "n_head"}), llm.d_model, {});
  const bool new_decoder = flag(config, "new_decoder_architecture", false);
  if (new_decoder) {
    set_kv_heads(attention, any_of(config, {"num_kv_heads", "n_head_kv"}));
  } else if (flag(config, "multi_query", true)) {
    attention.n_kv_heads = 1;  // whatever num_kv_heads says: Falcon-7B's file says 71
  }
  const std::int32_t d_ff = ffn_or_four_widths(config, {"ffn_hidden_size"}, llm.d_model);
  std::int64_t norms = 2;
  if (new_decoder)
    norms = count_or(config, "num_ln_in_parallel_attn", 2, 1, 2);
  else if (flag(config, "parallel_attn", true))
    norms = 1;
  fill_layers(
      llm, count(any_of(config, {"num_hidden_layers", "n_layer"}), 1, kMostLayers), attention, d_ff,
      {.norms_per_layer = norms,
       .bias_per_layer = flag(config, "bias", false) ? all_biases(llm, attention, d_ff) : 0});
  return llm;
}

/// phi-1, phi-1.5, phi-2.
Llm read_phi(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("max_position_embeddings"), 1, kMostPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = rope_theta(config, {"rope_theta"}, 10000);
  AttentionSpec attention = read_heads(config, config.at("num_attention_heads"), llm.d_model, {});
  if (const auto kv = config.find("num_key_value_heads")) set_kv_heads(attention, *kv);
  const std::int32_t d_ff = count(config.at("intermediate_size"), 1, kLargestFfn);
  const std::int64_t qk_norm =
      flag(config, "qk_layernorm", false) ? 4 * std::int64_t{attention.head_dim} : 0;
  fill_layers(llm, count(config.at("num_hidden_layers"), 1, kMostLayers), attention, d_ff,
              {.norms_per_layer = 1,
               .bias_per_layer = all_biases(llm, attention, d_ff) + qk_norm,
               .extra = llm.vocab_size});
  return llm;
}

/// Qwen, the first: `intermediate_size` is the width of gate and up together.
Llm read_qwen(const Field& config) {
  Llm llm;
  llm.d_model = count(config.at("hidden_size"), 1, kLargestWidth);
  llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
  llm.max_positions =
      count(any_of(config, {"max_position_embeddings", "seq_length"}), 1, kMostPositions);
  llm.tied_embeddings = flag(config, "tie_word_embeddings", false);
  llm.rope_theta = rope_theta(config, {"rotary_emb_base"}, 10000);
  const AttentionSpec attention =
      read_heads(config, config.at("num_attention_heads"), llm.d_model, {"kv_channels"});
  const Field ffn = config.at("intermediate_size");
  const std::int32_t both = count(ffn, 2, 2 * kLargestFfn);
  if (both % 2 != 0) ffn.expected("an even number: gate and up together");
  const bool bias = !flag(config, "no_bias", true);
  const std::int32_t n_layers = count(config.at("num_hidden_layers"), 1, kMostLayers);
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
  const std::int32_t n_layers = count(layers, 1, kMostLayers);
  llm.rope_theta = 10000;
  if (config.has("inner_hidden_size") || config.has("position_encoding_2d")) {
    llm.vocab_size = count(config.at("vocab_size"), 1, kLargestVocabulary);
    llm.max_positions = count(config.at("max_sequence_length"), 1, kMostPositions);
    llm.tied_embeddings = true;
    const AttentionSpec attention =
        read_heads(config, config.at("num_attention_heads"), llm.d_model, {});
    const std::int32_t d_ff = count(config.at("inner_hidden_size"), 1, kLargestFfn);
    fill_layers(llm, n_layers, attention, d_ff,
                {.bias_per_layer = all_biases(llm, attention, d_ff)});
    return llm;
  }
  llm.vocab_size =
      count(any_of(config, {"padded_vocab_size", "vocab_size"}), 1, kLargestVocabulary);
  llm.max_positions = count(config.at("seq_length"), 1, kMostPositions);
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
// The published files of Gemma 3 leave out what equals the defaults of Gemma3TextConfig.
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
Llm read_deepseek_v2(const Field& c) { return read_deepseek(c, false); }
Llm read_deepseek_v3(const Field& c) { return read_deepseek(c, true); }

struct Family {
  std::string_view model_type;
  std::string_view architecture;  // what names the family where model_type is absent
  Llm (*read)(const Field& config);
};

constexpr std::array kFamilies{
    Family{"bloom", "BloomForCausalLM", read_bloom},
    Family{"chatglm", "ChatGLMModel", read_chatglm},
    Family{"deepseek_v2", "DeepseekV2ForCausalLM", read_deepseek_v2},
    Family{"deepseek_v3", "DeepseekV3ForCausalLM", read_deepseek_v3},
    Family{"falcon", "FalconForCausalLM", read_falcon},
    Family{"gemma", "GemmaForCausalLM", read_gemma},
    Family{"gemma2", "Gemma2ForCausalLM", read_gemma2},
    Family{"gemma3_text", "Gemma3ForCausalLM", read_gemma3},
    Family{"glm", "GlmForCausalLM", read_glm},
    Family{"glm4", "Glm4ForCausalLM", read_glm4},
    Family{"glm4_moe", "Glm4MoeForCausalLM", read_glm4_moe},
    Family{"gpt2", "GPT2LMHeadModel", read_gpt2},
    Family{"gpt_neox", "GPTNeoXForCausalLM", read_gpt_neox},
    Family{"gpt_oss", "GptOssForCausalLM", read_gpt_oss},
    Family{"gptj", "GPTJForCausalLM", read_gptj},
    Family{"llama", "LlamaForCausalLM", read_llama},
    Family{"mistral", "MistralForCausalLM", read_mistral},
    Family{"mixtral", "MixtralForCausalLM", read_mixtral},
    Family{"opt", "OPTForCausalLM", read_opt},
    Family{"phi", "PhiForCausalLM", read_phi},
    Family{"phi3", "Phi3ForCausalLM", read_phi3},
    Family{"qwen", "QWenLMHeadModel", read_qwen},
    Family{"qwen2", "Qwen2ForCausalLM", read_qwen2},
    Family{"qwen2_moe", "Qwen2MoeForCausalLM", read_qwen2_moe},
    Family{"qwen3", "Qwen3ForCausalLM", read_qwen3},
    Family{"qwen3_moe", "Qwen3MoeForCausalLM", read_qwen3_moe},
};

/// Says what a family that is not known would have to tell.
[[noreturn]] void refuse_family(const Field& config, const Field& at, std::string_view what,
                                std::string_view word) {
  std::vector<std::string> given;
  std::vector<std::string> missing;
  for (const char* key : {"hidden_size", "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size",
                          "max_position_embeddings", "tie_word_embeddings", "sliding_window"}) {
    (config.raw().contains(key) ? given : missing).emplace_back(key);
  }
  std::vector<std::string> known;
  for (const Family& family : kFamilies)
    known.emplace_back(what == "architecture" ? family.architecture : family.model_type);
  at.fail(fmt::format(
      "{}. How its layers cache is not known here; of what a Llama-like family needs, the file "
      "gives {} and lacks {}. If its layers are those of a known family, say so in model_type",
      unknown_name(what, word, known),
      given.empty() ? "nothing" : fmt::format("{}", fmt::join(given, ", ")),
      missing.empty() ? "nothing" : fmt::format("{}", fmt::join(missing, ", "))));
}

const Family& family_of(const Field& config) {
  if (const auto type = config.find("model_type")) {
    const std::string word = type->string();
    for (const Family& family : kFamilies) {
      if (family.model_type == word) return family;
    }
    refuse_family(config, *type, "model_type", word);
  }
  const auto architectures = config.find("architectures");
  if (!architectures) config.fail("neither model_type nor architectures is given");
  const Field first = architectures->one_or_more().front();
  const std::string word = first.string();
  for (const Family& family : kFamilies) {
    if (family.architecture == word) return family;
  }
  refuse_family(config, first, "architecture", word);
}

/// Models that wrap a language model of a known family; the vision tower is not counted.
bool is_wrapper(std::string_view model_type) {
  return model_type == "gemma3" || model_type == "llava" || model_type == "llava_next" ||
         model_type == "mistral3" || model_type == "mllama";
}

}  // namespace

Llm read_hf_config(const Field& config, std::string name) {
  if (!config.is_object()) config.expected("an object");
  if (const auto type = config.find("model_type");
      type && type->is_string() && is_wrapper(type->string())) {
    const Field text = config.at("text_config");
    Llm llm = read_hf_config(text, std::move(name));
    if (!text.has("torch_dtype") && !text.has("dtype"))
      llm.published_dtype = published_dtype(config);
    return llm;
  }
  refuse_what_is_not_modelled(config);
  const Family& family = family_of(config);
  Llm llm = family.read(config);
  llm.name = std::move(name);
  llm.model_type = family.model_type;
  llm.source = config.file();
  llm.published_dtype = published_dtype(config);
  if (const std::int64_t total = parameters(llm); total > kMostParameters)
    config.fail(fmt::format("{} parameters; no more than 1e15 are believed", total));
  return llm;
}

}  // namespace kvsim
