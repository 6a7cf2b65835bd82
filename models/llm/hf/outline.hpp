#pragma once

// What the families of 2025 and later state in the same way, under one of several names. Private to
// models/llm.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/json/field.hpp"
#include "models/llm/llm.hpp"

namespace kvsim::hf {

/// Width, vocabulary, positions, tied embeddings and RoPE base; no layers yet.
[[nodiscard]] Llm read_outline(const Field& config, bool tied_otherwise);
[[nodiscard]] std::int32_t read_layer_count(const Field& config);

/// Query heads, cached heads and the widths of keys and values of attention with separate heads.
[[nodiscard]] AttentionSpec read_grouped_heads(const Field& config, std::int32_t d_model);
/// Heads and widths of latent attention.
[[nodiscard]] AttentionSpec read_latent_heads(const Field& config);
/// Elements of the norms on the low-rank query and on the latent.
[[nodiscard]] std::int64_t latent_norms(const AttentionSpec& attention);

/// Counts the biases that balance the load of a layer's experts, which are stored in fp32.
void add_router_bias(const MlpSpec& mlp, Llm& llm);

/// The words of a list with one entry per layer. Errors: InputError if its length is another one.
[[nodiscard]] std::vector<std::string> layer_words(const Field& list, std::int32_t n_layers);
[[nodiscard]] std::vector<std::int32_t> layer_numbers(const Field& list, std::int32_t n_layers,
                                                      std::int64_t low, std::int64_t high);
/// A word that no layer may have. Errors: InputError naming the known ones.
[[noreturn]] void refuse_word(const Field& item, std::string_view known);

/// What `torch_dtype` (or its new name `dtype`) says; bf16 where nothing does.
[[nodiscard]] Dtype plain_dtype(const Field& config);
/// Format of the matrices of recurrent states: what the file says, else the model's (vLLM's
/// `auto`).
[[nodiscard]] Dtype state_dtype(const Field& config);

/// The feed-forward block of each layer: dense, or experts.
struct FeedForward {
  MlpSpec dense{};
  MlpSpec sparse{};
  std::vector<bool> is_sparse{};  // by layer

  [[nodiscard]] const MlpSpec& of(std::int32_t layer) const {
    return is_sparse[static_cast<std::size_t>(layer)] ? sparse : dense;
  }
};
/// Experts and their number, widths and layers, under any of the names that families give them.
/// Without a count of experts all layers are dense. Errors: InputError.
[[nodiscard]] FeedForward read_feed_forward(const Field& config, std::int32_t n_layers);

}  // namespace kvsim::hf
