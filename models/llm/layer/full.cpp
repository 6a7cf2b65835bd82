#include <algorithm>

#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"
#include "models/units/error.hpp"

namespace kvsim {

std::string_view FullKind::word(const LayerSpec& layer) const {
  const AttentionSpec& a = layer.attention;
  if (a.n_kv_heads == a.n_heads) return "MHA";
  return a.n_kv_heads == 1 ? "MQA" : "GQA";
}

std::string FullKind::describe(const LayerSpec& layer) const {
  const AttentionSpec& a = layer.attention;
  std::string out = fmt::format("{}: {} query heads, {} KV heads of {}", word(layer), a.n_heads,
                                a.n_kv_heads, a.head_dim);
  if (a.v_head_dim != a.head_dim) out += fmt::format(" (values {})", a.v_head_dim);
  if (a.shares_cache) out += ", in the cache of an earlier layer";
  return out;
}

void FullKind::add_matrices(const LayerSpec& layer, std::int64_t d_model,
                            std::vector<LayerMatrix>& out) const {
  const AttentionSpec& a = layer.attention;
  const std::int64_t heads = a.n_heads;
  const std::int64_t kv_heads = a.n_kv_heads;
  const auto add = [&](std::string_view module, std::string_view operation, std::string_view result,
                       std::int64_t in, std::int64_t width, MatrixRole role) {
    out.push_back({.module = module,
                   .operation = operation,
                   .result = result,
                   .in = in,
                   .out = width,
                   .role = role});
  };
  add("self_attn.q_proj", "query projection", "queries", d_model, heads * (a.head_dim + a.gate_dim),
      MatrixRole::kQuery);
  if (a.has_kv_weights) {
    add("self_attn.k_proj", "key projection", "keys", d_model, kv_heads * a.head_dim,
        MatrixRole::kKey);
    if (a.has_v_weights) {
      add("self_attn.v_proj", "value projection", "values", d_model, kv_heads * a.v_head_dim,
          MatrixRole::kValue);
    }
  }
  add("self_attn.o_proj", "output projection", "attention block output", heads * a.v_head_dim,
      d_model, MatrixRole::kOutput);
}

void FullKind::add_cache(const LayerSpec& layer, Dtype kv_dtype,
                         std::vector<CacheItem>& out) const {
  const AttentionSpec& a = layer.attention;
  out.push_back(
      {.entry_bytes = bytes_in(double{1} * a.n_kv_heads * (a.head_dim + a.v_head_dim), kv_dtype),
       .max = entry_limit(a),
       .is_held = !a.shares_cache});
}

void FullKind::shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const {
  AttentionSpec& a = layer.attention;
  a.n_heads = divided(a.n_heads, ranks, "query heads", model);
  if (a.n_kv_heads >= ranks) {
    a.n_kv_heads = divided(a.n_kv_heads, ranks, "KV heads", model);
    return;
  }
  if (ranks % a.n_kv_heads != 0) {
    throw InputError{fmt::format("{} has {} KV heads, which {} GPUs cannot hold in equal copies",
                                 model, a.n_kv_heads, ranks)};
  }
  a.n_kv_heads = 1;
}

/// Entries of windows and chunks, which are full attention over part of the tokens, are not
/// distributed.
void FullKind::deal(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
                    std::string_view model) const {
  const AttentionSpec& a = layer.attention;
  if (is_bounded(a)) return LayerKind::deal(layer, ranks, context, model);
  deal_copies(layer, std::max(1, ranks / a.n_kv_heads), context, model);
}

std::optional<AttentionWork> FullKind::work(const LayerSpec& layer) const {
  const AttentionSpec& a = layer.attention;
  return AttentionWork{.score_width = a.head_dim,
                       .value_width = a.v_head_dim,
                       .rows = a.n_kv_heads,
                       .key_width = a.head_dim,
                       .row_value_width = a.v_head_dim,
                       .holds_rows = !a.shares_cache,
                       .prompt_elements = std::int64_t{a.n_kv_heads} * (a.head_dim + a.v_head_dim),
                       .prompt_key_heads = a.n_kv_heads,
                       .prompt_score_width = a.head_dim,
                       .prompt_value_width = a.v_head_dim};
}

const LayerKind& full_kind() {
  static const FullKind kind;
  return kind;
}

}  // namespace kvsim
