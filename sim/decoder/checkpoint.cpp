#include "sim/decoder/checkpoint.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "models/units/units_format.hpp"
#include "traces/safetensors.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMaxSize = 1 << 24;  // of a width, a vocabulary or a number of positions
constexpr std::int64_t kMaxLayers = 1000;

/// Sets the angles per position. "linear" divides all by a factor; "llama3" divides long waves by
/// it and interpolates between (Llama 3.1, `rope_scaling` of its configuration).
void read_rope(const Field& config, DecoderShape& shape) {
  shape.rope_theta = 10000;
  const std::optional<Field> nested = config.find("rope_parameters");
  const std::optional<Field> scaling = nested ? nested : config.find("rope_scaling");
  if (const auto theta = nested && nested->find("rope_theta") ? nested->find("rope_theta")
                                                              : config.find("rope_theta")) {
    shape.rope_theta = theta->number(1, 1e12);
  }
  const auto half = static_cast<std::size_t>(shape.head_dim / 2);
  for (std::size_t j = 0; j < half; ++j) {
    shape.inv_freq.push_back(
        std::pow(shape.rope_theta, -2.0 * static_cast<double>(j) / shape.head_dim));
  }
  if (!scaling) return;
  const std::optional<Field> kind =
      scaling->find("rope_type") ? scaling->find("rope_type") : scaling->find("type");
  const std::string type = kind ? kind->string() : "default";
  if (type == "default") return;
  shape.scales_rope = true;
  if (type != "linear" && type != "llama3") {
    kind->expected("a rope_type among default, linear, llama3");
  }
  const double factor = scaling->at("factor").number(1, 1e6);
  if (type == "linear") {
    for (double& f : shape.inv_freq) f /= factor;
    return;
  }
  const double low = scaling->at("low_freq_factor").number(1e-6, 1e6);
  const double high = scaling->at("high_freq_factor").number(1e-6, 1e6);
  const double old = scaling->at("original_max_position_embeddings").number(1, 1e9);
  for (double& f : shape.inv_freq) {
    const double waves = old * f / (2 * std::numbers::pi);  // in the original context
    const double blend = std::clamp((waves - low) / (high - low), 0.0, 1.0);
    f = (1 - blend) * f / factor + blend * f;
  }
}

DecoderShape read_shape(const Field& config, const std::string& model) {
  static constexpr std::array kTypes{"llama", "mistral", "qwen2", "qwen3"};
  const Field type = config.at("model_type");
  if (std::find(kTypes.begin(), kTypes.end(), type.string()) == kTypes.end()) {
    type.expected("a decoder of the Llama family (llama, mistral, qwen2, qwen3)");
  }
  if (const auto act = config.find("hidden_act"); act && act->string() != "silu") {
    act->expected("\"silu\"");
  }
  if (config.find("quantization_config")) {
    config.at("quantization_config").expected("weights in fp32, bf16 or fp16");
  }
  const auto size = [&](const char* key) { return config.at(key).integer(1, kMaxSize); };
  DecoderShape shape;
  shape.model = model;
  shape.n_layers = static_cast<std::int32_t>(config.at("num_hidden_layers").integer(1, kMaxLayers));
  shape.d_model = size("hidden_size");
  shape.d_ff = size("intermediate_size");
  shape.vocab = size("vocab_size");
  shape.max_positions = size("max_position_embeddings");
  shape.n_heads = static_cast<std::int32_t>(config.at("num_attention_heads").integer(1, 1 << 14));
  const auto kv = config.find("num_key_value_heads");
  shape.n_kv_heads = kv ? static_cast<std::int32_t>(kv->integer(1, shape.n_heads)) : shape.n_heads;
  if (shape.n_heads % shape.n_kv_heads != 0) kv->expected("a divisor of num_attention_heads");
  const auto dim = config.find("head_dim");
  if (!dim && shape.d_model % shape.n_heads != 0) {
    config.at("hidden_size").expected("a multiple of num_attention_heads, or head_dim");
  }
  shape.head_dim =
      static_cast<std::int32_t>(dim ? dim->integer(2, 1 << 14) : shape.d_model / shape.n_heads);
  if (shape.head_dim % 2 != 0) config.fail("an odd head size cannot be rotated");
  const bool slides =
      !config.has("use_sliding_window") || config.at("use_sliding_window").boolean();
  if (slides && config.has("sliding_window")) {
    config.at("sliding_window").expected("null: attention over a window is not run here");
  }
  for (const std::optional<Field>& from :
       {std::optional{config}, config.find("rope_parameters"), config.find("rope_scaling")}) {
    const auto share = from ? from->find("partial_rotary_factor") : std::nullopt;
    if (share && share->number(0, 1) != 1) share->expected("1: whole heads are rotated here");
  }
  shape.norm_epsilon = config.has("rms_norm_eps") ? config.at("rms_norm_eps").number(0, 1) : 1e-6;
  read_rope(config, shape);
  return shape;
}

/// Tensors that a model has in addition to its matrices and the norms of rows. As in transformers,
/// the type determines which keys of the configuration count, and an absent key is false.
struct OptionalTensors {
  bool qkv_bias = false, o_bias = false, mlp_bias = false, head_norms = false;
  bool is_tied = false;  // whether the embedding is also the output matrix
};

OptionalTensors read_optional_tensors(const Field& config) {
  const std::string type = config.at("model_type").string();
  const auto is_set = [&](const char* key) {
    const auto value = config.find(key);
    return value && value->boolean();
  };
  const auto refuse = [&](const char* key) {
    if (is_set(key)) config.at(key).expected(fmt::format("false: {} has no such biases", type));
  };
  OptionalTensors out{.is_tied = is_set("tie_word_embeddings")};
  if (type == "qwen2") {
    out.qkv_bias = true;
  } else if (type == "mistral") {
    refuse("attention_bias");
  } else {
    out.qkv_bias = out.o_bias = is_set("attention_bias");
  }
  if (type == "llama") {
    out.mlp_bias = is_set("mlp_bias");
  } else {
    refuse("mlp_bias");
  }
  out.head_norms = type == "qwen3";
  return out;
}

/// Tensors of one file or of several shards.
class Tensors {
 public:
  explicit Tensors(const fs::path& folder) : folder_{folder} {
    const fs::path index = folder / "model.safetensors.index.json";
    if (fs::exists(index)) {
      for (const auto& [name, file] : Field::read_file(index).at("weight_map").members()) {
        const std::string shard = file.string();
        if (shard != fs::path{shard}.filename()) file.expected("a file name without folders");
        add(name, shard);
      }
      return;
    }
    const Safetensors whole = Safetensors::open(folder / "model.safetensors");
    for (const auto& [name, entry] : whole.tensors()) add(name, "model.safetensors");
  }

  [[nodiscard]] bool has(const std::string& name) const { return files_.contains(name); }

  [[nodiscard]] std::vector<float> read(const std::string& name,
                                        const std::vector<std::int64_t>& wanted) {
    const auto file = files_.find(name);
    if (file == files_.end()) {
      throw InputError{fmt::format("{}: expected a tensor {}, got none", folder_.string(), name)};
    }
    read_.insert(name);
    auto& open = open_[file->second];
    if (!open) open.emplace(Safetensors::open(folder_ / file->second));
    const TensorEntry* entry = open->find(name);
    if (entry == nullptr || entry->shape != wanted) {
      throw InputError{fmt::format(
          "{}: {}: expected shape [{}], got {}", open->place(), name, fmt::join(wanted, ", "),
          entry == nullptr ? std::string{"no such tensor"}
                           : fmt::format("[{}]", fmt::join(entry->shape, ", ")))};
    }
    std::vector<float> out(static_cast<std::size_t>(entry->elements()));
    open->read_floats(name, 0, out);
    for (const float x : out) {
      if (!std::isfinite(x)) {
        throw InputError{fmt::format("{}: {}: expected finite values, got {}", open->place(), name,
                                     std::isnan(x) ? "NaN" : "infinity")};
      }
    }
    open->release(*entry);
    return out;
  }

  /// Rejects weights that were not read: they would change the model's output, or belong to another
  /// architecture. Files of older releases store the rotation's frequencies, which the
  /// configuration also has.
  void refuse_unread() const {
    for (const auto& [name, file] : files_) {
      if (read_.contains(name) || name.ends_with("rotary_emb.inv_freq")) continue;
      throw InputError{(folder_ / file).string(), "only tensors that config.json implies",
                       fmt::format("{}, which would not be read", name)};
    }
  }

 private:
  void add(const std::string& name, const std::string& file) { files_.emplace(name, file); }

  fs::path folder_;
  std::map<std::string, std::string> files_;
  std::set<std::string> read_;
  std::map<std::string, std::optional<Safetensors>> open_;
};

Bytes fp32_bytes(const DecoderShape& s, bool has_head) {
  const std::int64_t attention = s.d_model * s.head_dim * 2 * (s.n_heads + s.n_kv_heads);
  const std::int64_t layer = attention + 3 * s.d_model * s.d_ff;
  return Bytes{4 * (s.n_layers * layer + (has_head ? 2 : 1) * s.vocab * s.d_model)};
}

}  // namespace

Checkpoint read_checkpoint(const fs::path& folder, Bytes memory) {
  const Field config = Field::read_file(folder / "config.json");
  const fs::path name = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  Checkpoint out;
  out.shape = read_shape(config, name.string());
  const DecoderShape& s = out.shape;
  Tensors tensors{folder};
  const OptionalTensors parts = read_optional_tensors(config);
  const bool has_head = tensors.has("lm_head.weight");
  if (!has_head && !parts.is_tied) {
    throw InputError{fmt::format(
        "{}: expected a tensor lm_head.weight, got none; a model whose output matrix is "
        "the embedding has \"tie_word_embeddings\": true in config.json",
        folder.string())};
  }
  const Bytes needed = fp32_bytes(s, has_head);
  if (needed > memory) {
    throw InputError{fmt::format("{}: the weights take {} in fp32, more than the available {}",
                                 folder.string(), to_text(needed), to_text(memory))};
  }
  const auto matrix = [&](const std::string& tensor, std::int64_t rows, std::int64_t columns) {
    return Matrix{rows, columns, tensors.read(tensor, {rows, columns})};
  };
  const auto optional = [&](bool is_there, const std::string& tensor, std::int64_t n) {
    return is_there ? tensors.read(tensor, {n}) : std::vector<float>{};
  };
  out.embedding = matrix("model.embed_tokens.weight", s.vocab, s.d_model);
  const std::int64_t q = std::int64_t{s.n_heads} * s.head_dim;
  const std::int64_t kv = std::int64_t{s.n_kv_heads} * s.head_dim;
  for (std::int32_t l = 0; l < s.n_layers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    out.layers.push_back({
        .input_norm = tensors.read(at + "input_layernorm.weight", {s.d_model}),
        .output_norm = tensors.read(at + "post_attention_layernorm.weight", {s.d_model}),
        .q = matrix(at + "self_attn.q_proj.weight", q, s.d_model),
        .k = matrix(at + "self_attn.k_proj.weight", kv, s.d_model),
        .v = matrix(at + "self_attn.v_proj.weight", kv, s.d_model),
        .o = matrix(at + "self_attn.o_proj.weight", s.d_model, q),
        .gate = matrix(at + "mlp.gate_proj.weight", s.d_ff, s.d_model),
        .up = matrix(at + "mlp.up_proj.weight", s.d_ff, s.d_model),
        .down = matrix(at + "mlp.down_proj.weight", s.d_model, s.d_ff),
        .q_bias = optional(parts.qkv_bias, at + "self_attn.q_proj.bias", q),
        .k_bias = optional(parts.qkv_bias, at + "self_attn.k_proj.bias", kv),
        .v_bias = optional(parts.qkv_bias, at + "self_attn.v_proj.bias", kv),
        .o_bias = optional(parts.o_bias, at + "self_attn.o_proj.bias", s.d_model),
        .gate_bias = optional(parts.mlp_bias, at + "mlp.gate_proj.bias", s.d_ff),
        .up_bias = optional(parts.mlp_bias, at + "mlp.up_proj.bias", s.d_ff),
        .down_bias = optional(parts.mlp_bias, at + "mlp.down_proj.bias", s.d_model),
        .q_norm = optional(parts.head_norms, at + "self_attn.q_norm.weight", s.head_dim),
        .k_norm = optional(parts.head_norms, at + "self_attn.k_norm.weight", s.head_dim),
    });
  }
  if (const std::string more = fmt::format("model.layers.{}.input_layernorm.weight", s.n_layers);
      tensors.has(more)) {
    throw InputError{fmt::format("{}: num_hidden_layers", (folder / "config.json").string()),
                     "the layers of the weights",
                     fmt::format("{}, and there is {}", s.n_layers, more)};
  }
  out.final_norm = tensors.read("model.norm.weight", {s.d_model});
  if (has_head) out.head = matrix("lm_head.weight", s.vocab, s.d_model);
  if (has_head && parts.is_tied) {
    // Releases of transformers differ in which of two different matrices they use.
    if (out.head.data != out.embedding.data) {
      throw InputError{fmt::format("{}: lm_head.weight", folder.string()),
                       "the values of model.embed_tokens.weight, because config.json has "
                       "\"tie_word_embeddings\": true",
                       "other values"};
    }
    out.head = {};
  }
  tensors.refuse_unread();
  return out;
}

}  // namespace kvsim
