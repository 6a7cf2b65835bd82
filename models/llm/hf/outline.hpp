#pragma once

// Keys that the families of 2025 and later share, under one of several names. Private to
// models/llm.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

/// Reads width, vocabulary, positions, tied embeddings and RoPE base; leaves the layers empty.
[[nodiscard]] Llm read_outline(const Field& config, bool tied_otherwise);
[[nodiscard]] std::int32_t read_layer_count(const Field& config);

/// Reads query heads, KV heads and the widths of keys and values of attention with separate heads.
[[nodiscard]] AttentionSpec read_grouped_heads(const Field& config, std::int32_t d_model);
/// Reads heads and widths of latent attention.
[[nodiscard]] AttentionSpec read_latent_heads(const Field& config);
/// Returns the elements of the norms on the low-rank query and on the latent.
[[nodiscard]] std::int64_t latent_norms(const AttentionSpec& attention);

/// Counts the load-balancing biases of a layer's experts, which are stored in fp32.
void add_router_bias(const MlpSpec& mlp, Llm& llm);

/// Returns the words of a list with one entry per layer. Throws InputError for another length.
[[nodiscard]] std::vector<std::string> layer_words(const Field& list, std::int32_t n_layers);
[[nodiscard]] std::vector<std::int32_t> layer_numbers(const Field& list, std::int32_t n_layers,
                                                      std::int64_t low, std::int64_t high);
/// Rejects a word for a layer. Throws InputError with the known words.
[[noreturn]] void refuse_word(const Field& item, std::string_view known);

/// Returns `torch_dtype` (or its new name `dtype`); bf16 if neither is set.
[[nodiscard]] Dtype plain_dtype(const Field& config);
/// Returns the format of the matrices of recurrent states: the file's, else the model's (vLLM's
/// `auto`).
[[nodiscard]] Dtype state_dtype(const Field& config);

/// The feed-forward block of each layer: dense or experts.
struct FeedForward {
  MlpSpec dense{};
  MlpSpec sparse{};
  std::vector<bool> is_sparse{};  // by layer

  [[nodiscard]] const MlpSpec& of(std::int32_t layer) const {
    return is_sparse[static_cast<std::size_t>(layer)] ? sparse : dense;
  }
};
/// Reads the number, widths and layers of experts, under any of the names used by families. Without
/// a count of experts all layers are dense. Throws InputError.
[[nodiscard]] FeedForward read_feed_forward(const Field& config, std::int32_t n_layers);

}  // namespace kvsim::hf
