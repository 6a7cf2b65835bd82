#pragma once

// Checkpoints of small decoders with random weights, as folders that read_checkpoint opens.

#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "tests/support/files.hpp"
#include "traces/trace_writer.hpp"

namespace kvsim::test {

inline constexpr std::int64_t kVocab = 50, kWidth = 32, kInner = 48;
inline constexpr std::int32_t kLayers = 4, kHeads = 4, kKvHeads = 2, kDim = 8;

/// Differences between types of models. The default normalises queries and keys per head and has
/// attention biases.
struct RandomModel {
  std::string type = "qwen3";
  std::string keys = R"("attention_bias": true)";  // more keys of config.json
  bool head_norms = true;
  std::vector<TensorPlan> more{};  // additional tensors; a tied lm_head.weight is the embedding

  [[nodiscard]] std::string config() const {
    return fmt::format(
        R"({{"model_type": "{}", "hidden_size": 32, "intermediate_size": 48,
  "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, {},
  "vocab_size": 50, "max_position_embeddings": 256, "rope_theta": 1000.0, "rms_norm_eps": 1e-6}})",
        type, keys);
  }
  [[nodiscard]] bool has(const char* key) const {
    return keys.find(fmt::format("\"{}\": true", key)) != std::string::npos;
  }
};

/// A folder with config.json and model.safetensors. Equal seeds result in equal weights.
inline std::filesystem::path random_model(const std::string& name, const RandomModel& of = {},
                                          std::uint32_t seed = 1) {
  const std::filesystem::path folder = fresh(name);
  write(folder / "config.json", of.config());
  const bool o_bias = of.has("attention_bias");
  const bool qkv_bias = o_bias || of.type == "qwen2";
  std::vector<TensorPlan> plan{{"model.embed_tokens.weight", TensorType::kF32, {kVocab, kWidth}}};
  for (int l = 0; l < kLayers; ++l) {
    const std::string at = fmt::format("model.layers.{}.", l);
    const auto add = [&](const std::string& what, std::vector<std::int64_t> shape) {
      plan.push_back({at + what, TensorType::kF32, std::move(shape)});
    };
    const auto linear = [&](const std::string& what, std::int64_t rows, std::int64_t columns,
                            bool bias) {
      add(what + ".weight", {rows, columns});
      if (bias) add(what + ".bias", {rows});
    };
    add("input_layernorm.weight", {kWidth});
    add("post_attention_layernorm.weight", {kWidth});
    linear("self_attn.q_proj", kHeads * kDim, kWidth, qkv_bias);
    linear("self_attn.k_proj", kKvHeads * kDim, kWidth, qkv_bias);
    linear("self_attn.v_proj", kKvHeads * kDim, kWidth, qkv_bias);
    linear("self_attn.o_proj", kWidth, kHeads * kDim, o_bias);
    if (of.head_norms) {
      add("self_attn.q_norm.weight", {kDim});
      add("self_attn.k_norm.weight", {kDim});
    }
    linear("mlp.gate_proj", kInner, kWidth, of.has("mlp_bias"));
    linear("mlp.up_proj", kInner, kWidth, of.has("mlp_bias"));
    linear("mlp.down_proj", kWidth, kInner, of.has("mlp_bias"));
  }
  plan.push_back({"model.norm.weight", TensorType::kF32, {kWidth}});
  if (!of.has("tie_word_embeddings")) {
    plan.push_back({"lm_head.weight", TensorType::kF32, {kVocab, kWidth}});
  }
  plan.insert(plan.end(), of.more.begin(), of.more.end());
  SafetensorsWriter writer{folder / "model.safetensors", plan, {}};
  std::mt19937 random{seed};
  std::normal_distribution<float> normal{0, 0.3F};
  std::vector<float> embedding;  // the first tensor
  for (const TensorPlan& tensor : plan) {
    std::int64_t n = 1;
    for (const std::int64_t size : tensor.shape) n *= size;
    std::vector<float> values(static_cast<std::size_t>(n));
    const float mean = tensor.shape.size() == 1 && !tensor.name.ends_with("bias") ? 1.0F : 0.0F;
    for (float& x : values) x = mean + normal(random);
    if (embedding.empty()) embedding = values;
    const bool is_tied = tensor.name == "lm_head.weight" && of.has("tie_word_embeddings");
    writer.write(is_tied ? embedding : values);
  }
  writer.finish();
  return folder;
}

}  // namespace kvsim::test
