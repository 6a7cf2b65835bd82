#pragma once

// The families of Hugging Face configurations. Private to models/llm.

#include <span>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/hf/module_names.hpp"
#include "models/llm/hf/quantization.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

struct Family {
  std::string_view model_type;
  /// Class names in `architectures`, and other model types with the same layers.
  std::vector<std::string_view> architectures{};
  std::vector<std::string_view> aliases{};
  /// Fills everything except name, model_type, source and published formats. Throws InputError.
  Llm (*read)(const Field& config) = nullptr;
  /// Keys that `read` uses among those that change a cache or weights: memory_keys(), and other
  /// keys that are named like sizes.
  std::vector<std::string_view> reads{};
  CheckpointTraits checkpoint{};
};
[[nodiscard]] std::span<const Family> families();
/// Returns the family whose model type, alias or class is `word`; null if there is none.
[[nodiscard]] const Family* find_family(std::string_view word);

/// A key that changes a layer's cache or weights, and its meaning.
struct MemoryKey {
  std::string_view key;
  std::string_view meaning;
};
[[nodiscard]] std::span<const MemoryKey> memory_keys();
/// Whether a key that no reader uses is named like a size of caches or weights.
[[nodiscard]] bool may_change_memory(std::string_view key);

/// Families of files in models/llm/hf/family, each of which defines `Family NAME_family()`; the
/// build generates the list from the file names.
[[nodiscard]] std::vector<Family> families_of_files();

// Readers of the other families.
[[nodiscard]] Llm read_bamba(const Field& config);
[[nodiscard]] Llm read_bloom(const Field& config);
[[nodiscard]] Llm read_chatglm(const Field& config);
[[nodiscard]] Llm read_decilm(const Field& config);
[[nodiscard]] Llm read_deepseek_v2(const Field& config);
[[nodiscard]] Llm read_deepseek_v3(const Field& config);
[[nodiscard]] Llm read_deepseek_v4(const Field& config);
[[nodiscard]] Llm read_falcon(const Field& config);
[[nodiscard]] Llm read_falcon_h1(const Field& config);
[[nodiscard]] Llm read_gemma(const Field& config);
[[nodiscard]] Llm read_gemma2(const Field& config);
[[nodiscard]] Llm read_gemma3(const Field& config);
[[nodiscard]] Llm read_gemma3n(const Field& config);
[[nodiscard]] Llm read_gemma4(const Field& config);
[[nodiscard]] Llm read_glm(const Field& config);
[[nodiscard]] Llm read_glm4(const Field& config);
[[nodiscard]] Llm read_glm4_moe(const Field& config);
[[nodiscard]] Llm read_gpt2(const Field& config);
[[nodiscard]] Llm read_gpt_neox(const Field& config);
[[nodiscard]] Llm read_gpt_oss(const Field& config);
[[nodiscard]] Llm read_gptj(const Field& config);
[[nodiscard]] Llm read_granite_hybrid(const Field& config);
[[nodiscard]] Llm read_jamba(const Field& config);
[[nodiscard]] Llm read_kimi_linear(const Field& config);
[[nodiscard]] Llm read_llama(const Field& config);
[[nodiscard]] Llm read_llama4(const Field& config);
[[nodiscard]] Llm read_mimo_v2(const Field& config);
[[nodiscard]] Llm read_minimax(const Field& config);
[[nodiscard]] Llm read_mistral(const Field& config);
[[nodiscard]] Llm read_mixtral(const Field& config);
[[nodiscard]] Llm read_nemotron_h(const Field& config);
[[nodiscard]] Llm read_opt(const Field& config);
[[nodiscard]] Llm read_phi(const Field& config);
[[nodiscard]] Llm read_phi3(const Field& config);
[[nodiscard]] Llm read_qwen(const Field& config);
[[nodiscard]] Llm read_qwen2(const Field& config);
[[nodiscard]] Llm read_qwen2_moe(const Field& config);
[[nodiscard]] Llm read_qwen3(const Field& config);
[[nodiscard]] Llm read_qwen3_moe(const Field& config);
[[nodiscard]] Llm read_qwen_next(const Field& config);
[[nodiscard]] Llm read_step3p5(const Field& config);

}  // namespace kvsim::hf
