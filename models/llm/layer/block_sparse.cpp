#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"

namespace kvsim {
namespace {

/// Grouped-query attention to the key blocks with the best scores (MiniMax-M3): the layer holds all
/// keys and values, and one bf16 index key per token.
class BlockSparseKind final : public FullKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "block-sparse"; }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    return FullKind::describe(layer) +
           fmt::format(", {} entries chosen by {} index heads of {}", layer.attention.index.top_k,
                       layer.attention.index.n_heads, layer.attention.index.head_dim);
  }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    FullKind::add_matrices(layer, d_model, out);
    const IndexSpec& index = layer.attention.index;
    out.push_back({.module = "self_attn.index_q_proj",
                   .operation = "index query projection",
                   .result = "index queries",
                   .in = d_model,
                   .out = std::int64_t{index.n_heads} * index.head_dim});
    out.push_back({.module = "self_attn.index_k_proj",
                   .operation = "index key projection",
                   .result = "index keys",
                   .in = d_model,
                   .out = index.head_dim});
  }
  void add_cache(const LayerSpec& layer, Dtype kv_dtype,
                 std::vector<CacheItem>& out) const override {
    FullKind::add_cache(layer, kv_dtype, out);
    out.back().max_read = layer.attention.index.top_k;
    out.push_back({.role = CacheRole::kIndex,
                   .entry_bytes = bytes_in(layer.attention.index.head_dim, Dtype::kBf16)});
  }
  void deal(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
            std::string_view model) const override {
    LayerKind::deal(layer, ranks, context, model);  // throws
  }
  [[nodiscard]] std::optional<AttentionWork> work(const LayerSpec& layer) const override {
    auto work = FullKind::work(layer);
    work->rows = 0;
    return work;
  }
  [[nodiscard]] std::int64_t visited(const LayerSpec& layer, std::int64_t tokens) const override {
    return within_limit(layer.attention.index.top_k, tokens);
  }
  [[nodiscard]] double pairs(const LayerSpec& layer, double tokens) const override {
    return causal_pairs(tokens, layer.attention.index.top_k);
  }
  void add_operators(const LayerSpec& layer, const NewTokens& span,
                     std::vector<MixerOp>& out) const override {
    const IndexSpec& index = layer.attention.index;
    add_index_scores(index, span,
                     {.entries = span.end(),
                      .pairs = causal_pairs(span.end(), 0) - causal_pairs(span.before, 0),
                      .key_bytes = bytes_in(index.head_dim, Dtype::kBf16),
                      .is_8_bit = false},
                     out);
  }
};

}  // namespace

const LayerKind& block_sparse_kind() {
  static const BlockSparseKind kind;
  return kind;
}

}  // namespace kvsim
