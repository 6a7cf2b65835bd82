#include "models/llm/layer/layer_kind.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {

double CacheItem::held(std::int64_t tokens) const {
  if (!is_held) return 0;
  if (role == CacheRole::kState) return tokens > 0 ? entry_bytes : 0;
  return entry_bytes * static_cast<double>(within_limit(most, tokens / ratio));
}

double CacheItem::read(std::int64_t tokens) const {
  if (role == CacheRole::kState) return tokens > 0 ? entry_bytes : 0;
  return entry_bytes *
         static_cast<double>(within_limit(most_read, within_limit(most, tokens / ratio)));
}

double CacheItem::per_token() const {
  const bool grows = is_held && most == 0 && role != CacheRole::kState;
  return grows ? entry_bytes / static_cast<double>(ratio) : 0;
}

std::optional<AttentionWork> LayerKind::work(const LayerSpec& /*layer*/) const {
  return std::nullopt;
}

namespace {

/// A layer that only has a feed-forward block.
class NoAttention final : public LayerKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "none"; }
  [[nodiscard]] std::string_view word(const LayerSpec& /*layer*/) const override { return "none"; }
  [[nodiscard]] std::string describe(const LayerSpec& /*layer*/) const override { return "none"; }
  void add_matrices(const LayerSpec& /*layer*/, std::int64_t /*d_model*/,
                    std::vector<LayerMatrix>& /*out*/) const override {}
  void add_cache(const LayerSpec& /*layer*/, Dtype /*kv_dtype*/,
                 std::vector<CacheItem>& /*out*/) const override {}
  void shard(LayerSpec& /*layer*/, std::int32_t /*ranks*/,
             std::string_view /*model*/) const override {}
};

}  // namespace

const LayerKind& no_attention_kind() {
  static const NoAttention kind;
  return kind;
}

const LayerKind& attention_kind(const AttentionSpec& a) {
  if (a.n_heads == 0) return no_attention_kind();
  if (a.o_groups > 0) return compressed_kind();
  if (a.kv_lora_rank > 0) return a.index.n_heads > 0 ? indexed_latent_kind() : latent_kind();
  if (a.index.n_heads > 0) return block_sparse_kind();
  if (a.chunk > 0) return chunk_kind();
  return a.window > 0 ? window_kind() : full_kind();
}

const LayerKind& state_kind(const StateSpec& state) {
  switch (state.kind) {
    case StateKind::kNone:
      break;
    case StateKind::kGatedDelta:
      return gated_delta_kind();
    case StateKind::kKimiDelta:
      return kimi_delta_kind();
    case StateKind::kMamba1:
      return mamba1_kind();
    case StateKind::kMamba2:
      return mamba2_kind();
  }
  return no_attention_kind();
}

std::vector<const LayerKind*> mixer_kinds(const LayerSpec& layer) {
  std::vector<const LayerKind*> out;
  for (const LayerKind* kind : {&attention_kind(layer.attention), &state_kind(layer.state)}) {
    if (kind != &no_attention_kind()) out.push_back(kind);
  }
  return out;
}

std::string kind_name(const LayerSpec& layer) {
  std::string out;
  for (const LayerKind* kind : mixer_kinds(layer)) {
    if (!out.empty()) out += " + ";
    out += kind->name();
  }
  return out.empty() ? std::string{no_attention_kind().name()} : out;
}

std::vector<LayerMatrix> mixer_matrices(const LayerSpec& layer, std::int64_t d_model) {
  std::vector<LayerMatrix> out;
  attention_kind(layer.attention).add_matrices(layer, d_model, out);
  state_kind(layer.state).add_matrices(layer, d_model, out);
  KVSIM_CHECK(out.size() <= kMaxMixerMatrices, "a layer of {} matrices", out.size());
  return out;
}

std::vector<CacheItem> cache_items(const LayerSpec& layer, Dtype kv_dtype) {
  std::vector<CacheItem> out;
  attention_kind(layer.attention).add_cache(layer, kv_dtype, out);
  state_kind(layer.state).add_cache(layer, kv_dtype, out);
  return out;
}

void shard_mixers(LayerSpec& layer, std::int32_t ranks, std::string_view model) {
  for (const LayerKind* kind : mixer_kinds(layer)) kind->shard(layer, ranks, model);
}

AttentionWork attention_work(const AttentionSpec& attention) {
  LayerSpec layer;
  layer.attention = attention;
  const auto work = attention_kind(attention).work(layer);
  KVSIM_CHECK(work, "no operators of a {} layer", attention_kind(attention).name());
  return *work;
}

std::string unsupported_kind(const LayerSpec& layer) {
  const auto kinds = mixer_kinds(layer);
  if (kinds.empty() || layer.mlp.d_ff == 0) return "single-block";
  if (kinds.size() > 1 || !kinds.front()->work(layer)) {
    const AttentionSpec& a = layer.attention;
    std::string out = kind_name(layer);
    if (a.shares_cache) out = "shared " + out;
    if (a.gate_dim > 0) out = "gated " + out;
    return out;
  }
  return layer.mlp.latent_dim > 0 ? "latent-expert" : "";
}

std::int64_t entry_limit(const AttentionSpec& attention) {
  return attention.window > 0 ? attention.window : attention.chunk;
}

double fp8_index_key_bytes(std::int32_t head_dim) {
  constexpr std::int32_t kValuesPerScale = 128;
  constexpr std::int32_t kScaleBytes = 4;
  return head_dim + kScaleBytes * ((head_dim + kValuesPerScale - 1) / kValuesPerScale);
}

std::int32_t divided(std::int32_t n, std::int32_t ranks, std::string_view what,
                     std::string_view model) {
  if (n % ranks != 0) {
    throw InputError{
        fmt::format("{} has {} {}, which {} GPUs cannot share evenly", model, n, what, ranks)};
  }
  return n / ranks;
}

}  // namespace kvsim
