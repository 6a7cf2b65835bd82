#include "models/llm/layer/layer_kind.hpp"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"

namespace kvsim {

double CacheItem::held(std::int64_t tokens) const {
  if (!is_held) return 0;
  if (role == CacheRole::kState) return tokens > 0 ? entry_bytes : 0;
  return entry_bytes * static_cast<double>(within_limit(max, tokens / ratio));
}

double CacheItem::read(std::int64_t tokens) const {
  if (role == CacheRole::kState) return tokens > 0 ? entry_bytes : 0;
  return entry_bytes *
         static_cast<double>(within_limit(max_read, within_limit(max, tokens / ratio)));
}

double CacheItem::per_token() const {
  const bool grows = is_held && max == 0 && role != CacheRole::kState;
  return grows ? entry_bytes / static_cast<double>(ratio) : 0;
}

std::optional<AttentionWork> LayerKind::work(const LayerSpec& /*layer*/) const {
  return std::nullopt;
}

std::int64_t LayerKind::visited(const LayerSpec& layer, std::int64_t tokens) const {
  return within_limit(layer.attention, tokens);
}

double LayerKind::pairs(const LayerSpec& layer, double tokens) const {
  return causal_pairs(tokens, entry_limit(layer.attention));
}

void LayerKind::add_operators(const LayerSpec& /*layer*/, const NewTokens& /*span*/,
                              std::vector<MixerOp>& /*out*/) const {}

void LayerKind::deal(LayerSpec& /*layer*/, std::int32_t /*ranks*/, std::int32_t /*context*/,
                     std::string_view model) const {
  throw InputError{
      fmt::format("engine: decode_context_parallel: {} has layers of kind {}, whose entries no "
                  "engine deals over "
                  "GPUs",
                  model, name())};
}

double causal_pairs(double tokens, std::int64_t limit) {
  const auto w = static_cast<double>(limit);
  return limit > 0 && tokens > w ? w * tokens - w * w / 2 : tokens * tokens / 2;
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
  void deal(LayerSpec& /*layer*/, std::int32_t /*ranks*/, std::int32_t /*context*/,
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
    case StateKind::kShortConv:
      return short_conv_kind();
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
  for (CacheItem& item : out) item.entry_bytes /= layer.attention.context_ranks;
  state_kind(layer.state).add_cache(layer, kv_dtype, out);
  return out;
}

void shard_mixers(LayerSpec& layer, std::int32_t ranks, std::string_view model) {
  for (const LayerKind* kind : mixer_kinds(layer)) kind->shard(layer, ranks, model);
}

void deal_entries(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
                  std::string_view model) {
  if (context > 1) attention_kind(layer.attention).deal(layer, ranks, context, model);
}

AttentionWork attention_work(const AttentionSpec& attention) {
  LayerSpec layer;
  layer.attention = attention;
  AttentionWork work = attention_kind(attention).work(layer).value_or(AttentionWork{});
  work.context_ranks = attention.context_ranks;
  return work;
}

std::vector<MixerOp> mixer_operators(const LayerSpec& layer, const NewTokens& span) {
  std::vector<MixerOp> out;
  attention_kind(layer.attention).add_operators(layer, span, out);
  state_kind(layer.state).add_operators(layer, span, out);
  return out;
}

bool caches_rows(const LayerSpec& layer) { return attention_work(layer.attention).rows > 0; }

std::vector<CacheItem> items_without_rows(const LayerSpec& layer, Dtype kv_dtype) {
  std::vector<CacheItem> items = cache_items(layer, kv_dtype);
  if (caches_rows(layer)) items.erase(items.begin());
  return items;
}

double written_per_token(const std::vector<CacheItem>& items) {
  double sum = 0;
  for (const CacheItem& item : items) {
    if (item.is_held && item.role != CacheRole::kState) {
      sum += item.entry_bytes / static_cast<double>(item.ratio);
    }
  }
  return sum;
}

std::int64_t entry_limit(const AttentionSpec& attention) {
  if (attention.o_groups > 0) return 0;
  return attention.window > 0 ? attention.window : attention.chunk;
}

void add_convolution(std::vector<LayerMatrix>& out, std::string_view module, std::int64_t taps,
                     std::int64_t channels) {
  out.push_back({.module = module,
                 .operation = "convolution",
                 .result = "convolved",
                 .in = taps,
                 .out = channels,
                 .role = MatrixRole::kConvolution,
                 .part = WeightPart::kPlain});
}

void add_state_output(std::vector<LayerMatrix>& out, std::string_view module, std::int64_t in,
                      std::int64_t d_model) {
  out.push_back({.module = module,
                 .operation = "output projection of the state",
                 .result = "recurrent block output",
                 .in = in,
                 .out = d_model,
                 .role = MatrixRole::kOutput});
}

void add_recurrence(const LayerSpec& layer, const NewTokens& span, double chunk, MixerOp op,
                    std::vector<MixerOp>& out) {
  std::vector<CacheItem> items;
  state_kind(layer.state).add_cache(layer, Dtype::kBf16, items);
  const double state = items.front().entry_bytes;
  const double times = span.decodes ? 1 : std::ceil(span.tokens / chunk);
  op.cache_read = times * state;
  op.cache_written = (span.decodes ? span.tokens : times) * state;
  out.push_back(op);
}

void add_index_scores(const IndexSpec& index, const NewTokens& span, const IndexKeys& keys,
                      std::vector<MixerOp>& out) {
  const double heads = index.n_heads;
  const double scores = span.decodes ? span.tokens * keys.entries : keys.pairs;
  out.push_back({.name = "index scores",
                 .kind = MixerOpKind::kIndexScores,
                 .flops = heads * scores * (2.0 * index.head_dim + 2),
                 .cache_read = keys.entries * keys.key_bytes,
                 .read = span.tokens * heads * (index.head_dim + 1),
                 .written = 2 * scores,  // fp32
                 .is_8_bit = keys.is_8_bit});
  out.push_back({.name = "index choice",
                 .kind = MixerOpKind::kIndexChoice,
                 .flops = scores,
                 .read = 2 * scores,
                 .written = 2 * span.tokens * index.top_k});  // 32-bit positions
}

double fp8_index_key_bytes(std::int32_t head_dim) {
  constexpr std::int32_t kValuesPerScale = 128;
  constexpr std::int32_t kScaleBytes = 4;
  return head_dim + kScaleBytes * ((head_dim + kValuesPerScale - 1) / kValuesPerScale);
}

void deal_copies(LayerSpec& layer, std::int32_t copies, std::int32_t context,
                 std::string_view model) {
  if (copies % context != 0) {
    throw InputError{
        fmt::format("engine: decode_context_parallel: expected a divisor of the {} GPUs that hold "
                    "each entry of "
                    "{}, got {}",
                    copies, model, context)};
  }
  layer.attention.context_ranks = context;
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
