#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"

namespace kvsim {
namespace {

/// Returns the width of an expanded latent: keys without position and values of all heads.
std::int64_t expanded_width(const AttentionSpec& a) {
  return std::int64_t{a.n_heads} * (a.head_dim - a.rope_head_dim + a.v_head_dim);
}

/// Latent attention to the entries with the best index scores (DeepSeek-V3.2, GLM-5).
class IndexedLatentKind final : public LatentKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "latent-index"; }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    const IndexSpec& index = layer.attention.index;
    const std::string out = LatentKind::describe(layer);
    if (index.is_borrowed) {
      return out + fmt::format(", {} entries chosen by an earlier layer", index.top_k);
    }
    return out + fmt::format(", {} entries chosen by {} index heads of {}", index.top_k,
                             index.n_heads, index.head_dim);
  }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    LatentKind::add_matrices(layer, d_model, out);
    const IndexSpec& index = layer.attention.index;
    if (index.is_borrowed) return;
    const auto add = [&](std::string_view module, std::string_view operation, std::int64_t in,
                         std::int64_t width, WeightPart part) {
      out.push_back({.module = module,
                     .operation = operation,
                     .result = "index queries and keys",
                     .in = in,
                     .out = width,
                     .part = part});
    };
    add("self_attn.indexer.wq_b", "index query projection", layer.attention.q_lora_rank,
        std::int64_t{index.n_heads} * index.head_dim, WeightPart::kLinear);
    add("self_attn.indexer.wk", "index key projection", d_model, index.head_dim,
        WeightPart::kLinear);
    // Released checkpoints never quantise it.
    add("self_attn.indexer.weights_proj", "index weights projection", d_model, index.n_heads,
        WeightPart::kPlain);
  }
  void add_cache(const LayerSpec& layer, Dtype kv_dtype,
                 std::vector<CacheItem>& out) const override {
    const AttentionSpec& a = layer.attention;
    LatentKind::add_cache(layer, kv_dtype, out);
    // An 8-bit entry stores its RoPE key in 16 bits, and one fp32 scale per 128 elements of the
    // latent (vLLM's fp8_ds_mla: 512 + 4 * 4 + 64 * 2 = 656 bytes).
    if (bits_of(kv_dtype) == 8) {
      out.back().entry_bytes =
          fp8_index_key_bytes(a.kv_lora_rank) + bytes_in(a.rope_head_dim, Dtype::kBf16);
    }
    out.back().max_read = a.index.top_k;
    if (a.index.is_borrowed) return;
    out.push_back(
        {.role = CacheRole::kIndex, .entry_bytes = fp8_index_key_bytes(a.index.head_dim)});
  }
  /// Queries and outputs are expanded at prefill, too: each query attends to different entries.
  [[nodiscard]] std::optional<AttentionWork> work(const LayerSpec& layer) const override {
    auto work = LatentKind::work(layer);
    work->rows = 0;
    work->prompt_elements = work->score_width;
    work->prompt_score_width = work->score_width;
    work->prompt_value_width = work->value_width;
    work->expansion_in = work->expansion_out = 0;
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
    if (index.is_borrowed) return;
    // A rank scores only its own keys.
    const double share = 1.0 / layer.attention.context_ranks;
    const double pairs = causal_pairs(span.end(), 0) - causal_pairs(span.before, 0);
    add_index_scores(index, span,
                     {.entries = share * span.end(),
                      .pairs = share * pairs,
                      .key_bytes = fp8_index_key_bytes(index.head_dim)},
                     out);
  }
};

}  // namespace

std::string_view LatentKind::word(const LayerSpec& /*layer*/) const { return "MLA"; }

std::string LatentKind::describe(const LayerSpec& layer) const {
  const AttentionSpec& a = layer.attention;
  return fmt::format("{}: {} query heads, one latent of {} and a RoPE key of {} cached",
                     word(layer), a.n_heads, a.kv_lora_rank, a.rope_head_dim);
}

void LatentKind::add_matrices(const LayerSpec& layer, std::int64_t d_model,
                              std::vector<LayerMatrix>& out) const {
  const AttentionSpec& a = layer.attention;
  const std::int64_t q_width = std::int64_t{a.n_heads} * a.head_dim;
  const auto add = [&](std::string_view module, std::string_view operation, std::string_view result,
                       std::int64_t in, std::int64_t width, MatrixRole role) {
    out.push_back({.module = module,
                   .operation = operation,
                   .result = result,
                   .in = in,
                   .out = width,
                   .role = role});
  };
  if (a.q_lora_rank > 0) {
    add("self_attn.q_a_proj", "query down projection", "low-rank queries", d_model, a.q_lora_rank,
        MatrixRole::kInner);
    add("self_attn.q_b_proj", "query up projection", "queries", a.q_lora_rank, q_width,
        MatrixRole::kQuery);
  } else {
    add("self_attn.q_proj", "query projection", "queries", d_model, q_width, MatrixRole::kQuery);
  }
  add("self_attn.kv_a_proj_with_mqa", "latent projection", "latents", d_model,
      a.kv_lora_rank + a.rope_head_dim, MatrixRole::kKey);
  // At prefill: keys and values of all heads. At decode: the same weights, absorbed into queries
  // and outputs, with the same arithmetic.
  add("self_attn.kv_b_proj", "latent expansion", "expanded keys and values", a.kv_lora_rank,
      expanded_width(a), MatrixRole::kValue);
  add("self_attn.o_proj", "output projection", "attention block output",
      std::int64_t{a.n_heads} * a.v_head_dim, d_model, MatrixRole::kOutput);
  if (a.gate_dim > 0) {
    add("self_attn.g_proj", "output gate projection", "output gate", d_model,
        std::int64_t{a.n_heads} * a.gate_dim, MatrixRole::kSide);
  }
}

void LatentKind::add_cache(const LayerSpec& layer, Dtype kv_dtype,
                           std::vector<CacheItem>& out) const {
  const AttentionSpec& a = layer.attention;
  out.push_back({.entry_bytes = bytes_in(a.kv_lora_rank + a.rope_head_dim, kv_dtype),
                 .is_held = !a.shares_cache});
}

void LatentKind::shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const {
  AttentionSpec& a = layer.attention;
  a.n_heads = divided(a.n_heads, ranks, "query heads", model);
  a.n_kv_heads = a.n_heads;  // the latent is replicated on each rank
}

void LatentKind::deal(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
                      std::string_view model) const {
  deal_copies(layer, ranks, context, model);
}

std::optional<AttentionWork> LatentKind::work(const LayerSpec& layer) const {
  const AttentionSpec& a = layer.attention;
  return AttentionWork{.is_latent = true,
                       .score_width = a.kv_lora_rank + a.rope_head_dim,
                       .value_width = a.kv_lora_rank,
                       .rows = 1,
                       .key_width = a.kv_lora_rank + a.rope_head_dim,
                       .holds_rows = !a.shares_cache,
                       .prompt_elements = expanded_width(a),
                       .prompt_key_heads = a.n_heads,
                       .prompt_score_width = a.head_dim,
                       .prompt_value_width = a.v_head_dim,
                       .expansion_in = a.kv_lora_rank,
                       .expansion_out = expanded_width(a)};
}

const LayerKind& latent_kind() {
  static const LatentKind kind;
  return kind;
}

const LayerKind& indexed_latent_kind() {
  static const IndexedLatentKind kind;
  return kind;
}

}  // namespace kvsim
