#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "models/llm/layer/kinds.hpp"

namespace kvsim {
namespace {

// A compressor with ratio 4 overlaps its windows: it projects two sets of columns and keeps them in
// its state (vLLM DeepseekV4 compressor: coff = 1 + (ratio == 4)).
constexpr std::int32_t kOverlappingRatio = 4;
std::int64_t sets_of(const AttentionSpec& a) { return a.ratio == kOverlappingRatio ? 2 : 1; }
bool has_index(const AttentionSpec& a) { return a.ratio > 0 && a.index.n_heads > 0; }

/// Returns the maximum number of compressed entries per query; 0: all.
std::int64_t max_chosen(const AttentionSpec& a) { return has_index(a) ? a.index.top_k : 0; }

/// Returns the bytes of a compressor's fp32 state for keys of `width`: inputs and gates of the
/// tokens not compressed yet, of two windows if they overlap.
double state_bytes(const AttentionSpec& a, std::int64_t width) {
  const std::int64_t slots = a.ratio * sets_of(a);
  return bytes_in(static_cast<double>(slots * 2 * sets_of(a) * width), Dtype::kFp32);
}

/// Attention of all heads to keys that are also the values (DeepSeek-V4): entries of a sliding
/// window, and compressed entries of `ratio` tokens each, among which an index chooses.
class CompressedKind final : public LayerKind {
 public:
  [[nodiscard]] std::string_view name() const override { return "compressed"; }
  [[nodiscard]] std::string_view word(const LayerSpec& /*layer*/) const override { return "MQA"; }
  [[nodiscard]] std::string describe(const LayerSpec& layer) const override {
    const AttentionSpec& a = layer.attention;
    std::string out = fmt::format("{} query heads, one entry of {} for a window of {} tokens",
                                  a.n_heads, a.head_dim, a.window);
    if (a.ratio > 0) out += fmt::format(" and for each {} tokens", a.ratio);
    if (has_index(a)) {
      out += fmt::format(", of which {} are chosen by {} index heads of {}", a.index.top_k,
                         a.index.n_heads, a.index.head_dim);
    }
    return out;
  }
  void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                    std::vector<LayerMatrix>& out) const override {
    const AttentionSpec& a = layer.attention;
    const std::int64_t q_width = std::int64_t{a.n_heads} * a.head_dim;
    const std::int64_t o_rank = std::int64_t{a.o_groups} * a.o_lora_rank;
    const auto add = [&](std::string_view module, std::string_view operation, std::int64_t in,
                         std::int64_t width, MatrixRole role,
                         WeightPart part = WeightPart::kLinear) {
      out.push_back({.module = module,
                     .operation = operation,
                     .result = "projection",
                     .in = in,
                     .out = width,
                     .role = role,
                     .part = part});
    };
    add("attn.wq_a", "query down projection", d_model, a.q_lora_rank, MatrixRole::kInner);
    add("attn.wq_b", "query up projection", a.q_lora_rank, q_width, MatrixRole::kQuery);
    add("attn.wkv", "entry projection", d_model, a.head_dim, MatrixRole::kKey);
    add("attn.wo_a", "grouped output projection", q_width / a.o_groups, o_rank,
        MatrixRole::kOutputInner);
    add("attn.wo_b", "output projection", o_rank, d_model, MatrixRole::kOutput);
    if (a.ratio == 0) return;
    const auto add_compressor = [&](std::string_view values, std::string_view gates,
                                    std::int64_t width) {
      const std::int64_t columns = sets_of(a) * width;
      add(values, "compressor projection", d_model, columns, MatrixRole::kSide, WeightPart::kPlain);
      add(gates, "compressor gates", d_model, columns, MatrixRole::kSide, WeightPart::kPlain);
    };
    add_compressor("attn.compressor.wkv", "attn.compressor.wgate", a.head_dim);
    if (!has_index(a)) return;
    add("attn.indexer.wq_b", "index query projection", a.q_lora_rank,
        std::int64_t{a.index.n_heads} * a.index.head_dim, MatrixRole::kSide);
    add("attn.indexer.weights_proj", "index weights projection", d_model, a.index.n_heads,
        MatrixRole::kSide, WeightPart::kPlain);
    add_compressor("attn.indexer.compressor.wkv", "attn.indexer.compressor.wgate",
                   a.index.head_dim);
  }
  void add_cache(const LayerSpec& layer, Dtype kv_dtype,
                 std::vector<CacheItem>& out) const override {
    const AttentionSpec& a = layer.attention;
    // An 8-bit entry stores its RoPE part in 16 bits and has eight bytes of scales (vLLM fp8_ds_mla
    // of V4: 448 + 64 * 2 + 8 = 584 bytes).
    constexpr double kScaleBytes = 8;
    const double entry =
        bits_of(kv_dtype) == 8
            ? a.head_dim - a.rope_head_dim + bytes_in(a.rope_head_dim, Dtype::kBf16) + kScaleBytes
            : bytes_in(a.head_dim, kv_dtype);
    out.push_back({.entry_bytes = entry, .max = a.window});
    if (a.ratio == 0) return;
    out.push_back({.entry_bytes = entry, .ratio = a.ratio, .max_read = max_chosen(a)});
    double state = state_bytes(a, a.head_dim);
    if (has_index(a)) {
      out.push_back({.role = CacheRole::kIndex,
                     .entry_bytes = fp8_index_key_bytes(a.index.head_dim),
                     .ratio = a.ratio});
      state += state_bytes(a, a.index.head_dim);
    }
    out.push_back({.role = CacheRole::kState, .entry_bytes = state});
  }
  [[nodiscard]] std::optional<AttentionWork> work(const LayerSpec& layer) const override {
    const AttentionSpec& a = layer.attention;
    return AttentionWork{.is_latent = true,
                         .score_width = a.head_dim,
                         .value_width = a.head_dim,
                         .key_width = a.head_dim,
                         .prompt_elements = a.head_dim,
                         .prompt_key_heads = 1,
                         .prompt_score_width = a.head_dim,
                         .prompt_value_width = a.head_dim};
  }
  [[nodiscard]] std::int64_t visited(const LayerSpec& layer, std::int64_t tokens) const override {
    const AttentionSpec& a = layer.attention;
    const std::int64_t near = within_limit(a.window, tokens);
    return a.ratio == 0 ? near : near + within_limit(max_chosen(a), tokens / a.ratio);
  }
  [[nodiscard]] double pairs(const LayerSpec& layer, double tokens) const override {
    const AttentionSpec& a = layer.attention;
    const double near = causal_pairs(tokens, a.window);
    // Token t attends to t / ratio entries, or to the chosen number.
    return a.ratio == 0 ? near : near + causal_pairs(tokens, max_chosen(a) * a.ratio) / a.ratio;
  }
  void add_operators(const LayerSpec& layer, const NewTokens& span,
                     std::vector<MixerOp>& out) const override {
    const AttentionSpec& a = layer.attention;
    if (a.ratio == 0) return;
    double state = state_bytes(a, a.head_dim);
    double width = a.head_dim;
    if (has_index(a)) {
      state += state_bytes(a, a.index.head_dim);
      width += a.index.head_dim;
    }
    const auto slots = static_cast<double>(a.ratio * sets_of(a));
    // Values times the softmax of their gates over the tokens of an entry, and their sum.
    const double columns = span.tokens * static_cast<double>(sets_of(a)) * width;
    out.push_back({.name = "compressor",
                   .kind = MixerOpKind::kCompression,
                   .flops = 4 * columns,
                   .cache_read = state,
                   .cache_written = std::min(span.tokens, slots) / slots * state,
                   .read = 2 * columns,
                   .written = span.tokens / a.ratio * width});
    if (!has_index(a)) return;
    add_index_scores(
        a.index, span,
        {.entries = std::floor(span.end() / a.ratio),
         .pairs = (causal_pairs(span.end(), 0) - causal_pairs(span.before, 0)) / a.ratio,
         .key_bytes = fp8_index_key_bytes(a.index.head_dim)},
        out);
  }
  void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const override {
    AttentionSpec& a = layer.attention;
    a.n_heads = divided(a.n_heads, ranks, "query heads", model);
    a.o_groups = divided(a.o_groups, ranks, "groups of output projections", model);
  }
};

}  // namespace

const LayerKind& compressed_kind() {
  static const CompressedKind kind;
  return kind;
}

}  // namespace kvsim
