#pragma once

// The kinds of layers, and code shared by several of them. Private to models/llm/layer.

#include <cstdint>
#include <string_view>

#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {

[[nodiscard]] const LayerKind& no_attention_kind();
[[nodiscard]] const LayerKind& full_kind();
[[nodiscard]] const LayerKind& window_kind();
[[nodiscard]] const LayerKind& chunk_kind();
[[nodiscard]] const LayerKind& block_sparse_kind();
[[nodiscard]] const LayerKind& latent_kind();
[[nodiscard]] const LayerKind& indexed_latent_kind();
[[nodiscard]] const LayerKind& compressed_kind();
[[nodiscard]] const LayerKind& gated_delta_kind();
[[nodiscard]] const LayerKind& kimi_delta_kind();
[[nodiscard]] const LayerKind& mamba1_kind();
[[nodiscard]] const LayerKind& mamba2_kind();
[[nodiscard]] const LayerKind& short_conv_kind();

/// Attention with keys and values of separate heads: full attention, and the base of kinds that
/// restrict the visible tokens.
class FullKind : public LayerKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "full"; }
  [[nodiscard]] std::string_view word(const LayerSpec& layer) const override;
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override;
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override;
  void add_cache(const LayerSpec& layer, Dtype kv_dtype,
                 std::vector<CacheItem>& out) const override;
  void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const override;
  void deal(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
            std::string_view model) const override;
  [[nodiscard]] std::optional<AttentionWork> work(const LayerSpec& layer) const override;
};

/// Latent attention, and the base of the kind with an index.
class LatentKind : public LayerKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "latent"; }
  [[nodiscard]] bool caches_latents() const override { return true; }
  [[nodiscard]] std::string_view word(const LayerSpec& layer) const override;
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override;
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override;
  void add_cache(const LayerSpec& layer, Dtype kv_dtype,
                 std::vector<CacheItem>& out) const override;
  void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const override;
  void deal(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
            std::string_view model) const override;
  [[nodiscard]] std::optional<AttentionWork> work(const LayerSpec& layer) const override;
};

/// Distributes entries, which `copies` ranks would otherwise replicate, over `context` of these
/// ranks. Throws InputError if `context` does not divide `copies`.
void deal_copies(LayerSpec& layer, std::int32_t copies, std::int32_t context,
                 std::string_view model);

/// Returns the bytes of `elements` in `dtype`, including fractions of a byte.
[[nodiscard]] inline double bytes_in(double elements, Dtype dtype) {
  return elements * bits_of(dtype) / 8.0;
}

/// Returns the bytes of an index key in fp8 with one fp32 scale per 128 elements (vLLM
/// model_executor/models/deepseek_v2.py, DeepseekV32IndexerCache: 128 + 4 bytes).
[[nodiscard]] double fp8_index_key_bytes(std::int32_t head_dim);

/// Work of an index: its entries at the end of a span, the bytes of a key, and (query, key) pairs.
struct IndexKeys {
  double entries = 0;
  double pairs = 0;
  double key_bytes = 0;
  bool is_8_bit = true;
};
/// Adds the scores of every query of the span with every key before it, ReLU and weighted sum over
/// the index's heads, and the top-k selection. A decode step's single query reads all keys; queries
/// of a prompt share one pass over them.
void add_index_scores(const IndexSpec& index, const NewTokens& span, const IndexKeys& keys,
                      std::vector<MixerOp>& out);

/// Adds the convolution of a recurrent layer; add_state_output adds its output projection.
void add_convolution(std::vector<LayerMatrix>& out, std::string_view module, std::int64_t taps,
                     std::int64_t channels);
void add_state_output(std::vector<LayerMatrix>& out, std::string_view module, std::int64_t in,
                      std::int64_t d_model);
/// Appends `op` with the traffic of the layer's state: a step reads the whole state and writes it
/// after each of its tokens; the scan of a prompt reads and writes it once per chunk of `chunk`
/// tokens.
void add_recurrence(const LayerSpec& layer, const NewTokens& span, double chunk, MixerOp op,
                    std::vector<MixerOp>& out);

}  // namespace kvsim
