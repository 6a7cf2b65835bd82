#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/llm/layer/spec.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// What the output of a matrix is to its layer.
enum class MatrixRole : std::uint8_t {
  kInner,        // goes into the next matrix
  kQuery,        // of attention,
  kKey,          // as cached: a latent is a key
  kValue,        //
  kOutputInner,  // goes into the projection back to the hidden width
  kOutput,       // that projection
  kConvolution,  // taps over the last tokens, channel by channel: no product
  kSide          // of an index, a compressor, a gate, a recurrent state
};

/// A weight matrix of `in` x `out` of a layer.
struct LayerMatrix {
  std::string_view module{};     // in the checkpoint, relative to the layer: "self_attn.q_proj"
  std::string_view operation{};  // its product in a graph of operators: "query projection"
  std::string_view result{};     // the tensor of that product: "queries"
  std::int64_t in = 0;
  std::int64_t out = 0;
  MatrixRole role = MatrixRole::kSide;
  WeightPart part = WeightPart::kLinear;
  std::int64_t count = 1;    // equal matrices of that size: those of routed experts
  std::int64_t visited = 1;  // of them, by one token
};

/// Sizes by which the operators of attention are written down.
struct AttentionWork {
  bool is_latent = false;  // one tensor of rows that serve as keys and as values
  // Decode: elements of an entry that each query head scores, and that it sums.
  std::int32_t score_width = 0;
  std::int32_t value_width = 0;
  // The cache: rows of a token, elements of a row's key and of its value. No rows: what the cache
  // holds and a step reads is known only by its items, and no method compresses it.
  std::int32_t rows = 0;
  std::int32_t key_width = 0;
  std::int32_t row_value_width = 0;  // 0 of a latent: the key is all
  bool holds_rows = true;            // false: they are an earlier layer's
  std::int32_t context_ranks = 1;    // that the tokens of a sequence are dealt over
  // Prefill: elements of keys and values per token, and heads of the keys.
  std::int64_t prompt_elements = 0;
  std::int32_t prompt_key_heads = 0;
  // Elements that each query head scores and sums there.
  std::int32_t prompt_score_width = 0;
  std::int32_t prompt_value_width = 0;
  // Latent rows of earlier parts of a prompt are expanded again by a matrix of so many rows and
  // columns; 0: no expansion.
  std::int64_t expansion_in = 0;
  std::int64_t expansion_out = 0;

  /// Elements that one token adds to the cache.
  [[nodiscard]] std::int64_t cached_elements() const {
    return std::int64_t{rows} * (key_width + row_value_width);
  }
  /// Of `tokens` entries those that one rank holds, of the rank with most.
  [[nodiscard]] std::int64_t held_here(std::int64_t tokens) const {
    return (tokens + context_ranks - 1) / context_ranks;
  }
  /// Elements of a row, key and value.
  [[nodiscard]] std::int32_t row_width() const { return key_width + row_value_width; }
};

/// What the bytes of a cache item are.
enum class CacheRole : std::uint8_t { kEntries, kIndex, kState };

/// Memory that a layer keeps per sequence: entries of one size, one for each `ratio` tokens. A
/// state is one entry that is there from the first token on.
struct CacheItem {
  CacheRole role = CacheRole::kEntries;
  double entry_bytes = 0;
  std::int64_t ratio = 1;     // tokens for one entry
  std::int64_t max = 0;       // entries held at most; 0: no bound
  std::int64_t max_read = 0;  // entries that a decode step reads at most; 0: all that it holds
  bool is_held = true;        // false: they are those of another layer

  [[nodiscard]] double held(std::int64_t tokens) const;
  [[nodiscard]] double read(std::int64_t tokens) const;
  /// Bytes that one token adds once bounded items are full.
  [[nodiscard]] double per_token() const;
};

/// New tokens of one sequence, and those before them.
struct NewTokens {
  double tokens = 1;
  double before = 0;
  bool decodes = true;  // one step, or the verification of a draft; false: part of a prompt

  [[nodiscard]] double end() const { return before + tokens; }
};

enum class MixerOpKind : std::uint8_t {
  kRecurrence,   // a state's update, step by step or in chunks of a scan
  kIndexScores,  // of an index's query heads over its keys
  kIndexChoice,  // of the best of them
  kCompression   // of entries
};

/// An operator of a layer for one sequence, other than products with its matrices and attention.
struct MixerOp {
  std::string_view name{};
  MixerOpKind kind = MixerOpKind::kRecurrence;
  double flops = 0;
  double cache_read = 0;  // bytes
  double cache_written = 0;
  double read = 0;  // elements of activations
  double written = 0;
  bool is_8_bit = false;  // its arithmetic
};

/// A kind of layer: its weights, its cache, its arithmetic and how ranks share it. One file per
/// kind. A kind has no state; a layer's numbers are those of its LayerSpec.
class LayerKind {
 public:
  LayerKind() = default;
  LayerKind(const LayerKind&) = delete;
  LayerKind& operator=(const LayerKind&) = delete;
  virtual ~LayerKind() = default;

  /// The word of results: "full", "window", "latent-index".
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Short name of attention by its heads: "GQA", "MLA".
  [[nodiscard]] virtual std::string_view word(const LayerSpec& layer) const = 0;
  /// Whether its cache is of latents, which all heads of a token share.
  [[nodiscard]] virtual bool caches_latents() const { return false; }
  /// A sentence for people: "GQA: 32 query heads, 8 KV heads of 128".
  [[nodiscard]] virtual std::string describe(const LayerSpec& layer) const = 0;

  /// The weight matrices, in the order of execution; the output projection follows the last input.
  virtual void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                            std::vector<LayerMatrix>& out) const = 0;
  /// What one sequence holds with keys and values in `kv_dtype`.
  virtual void add_cache(const LayerSpec& layer, Dtype kv_dtype,
                         std::vector<CacheItem>& out) const = 0;
  /// Divides heads and channels among `ranks`. Errors: InputError "MODEL has N heads, …".
  virtual void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const = 0;
  /// Deals the entries of a whole model's layer over `context` of `ranks` ranks that would hold
  /// equal copies of them. Errors: InputError where they hold fewer copies, or the engine does not
  /// deal this kind.
  virtual void deal(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
                    std::string_view model) const;

  /// Sizes of its attention operators; none: a layer without attention.
  [[nodiscard]] virtual std::optional<AttentionWork> work(const LayerSpec& layer) const;
  /// Entries that attention of a decode step visits once the sequence has `tokens` tokens.
  [[nodiscard]] virtual std::int64_t visited(const LayerSpec& layer, std::int64_t tokens) const;
  /// (query, key) pairs that one head visits over the first `tokens` tokens of a prompt: half the
  /// square, less what the layer does not see.
  [[nodiscard]] virtual double pairs(const LayerSpec& layer, double tokens) const;
  /// Its other operators over new tokens of a sequence.
  virtual void add_operators(const LayerSpec& layer, const NewTokens& span,
                             std::vector<MixerOp>& out) const;
};

/// Half the square of `tokens`, cut where a layer holds no more than `limit` entries; 0: no limit.
[[nodiscard]] double causal_pairs(double tokens, std::int64_t limit);

/// The kind of a layer's attention, and of its recurrent state; "none" where it has neither.
[[nodiscard]] const LayerKind& attention_kind(const AttentionSpec& attention);
[[nodiscard]] const LayerKind& state_kind(const StateSpec& state);
/// Both of a layer, without "none".
[[nodiscard]] std::vector<const LayerKind*> mixer_kinds(const LayerSpec& layer);
/// Names of both, joined by " + ": "full", "full + mamba2", "none".
[[nodiscard]] std::string kind_name(const LayerSpec& layer);

/// Weight matrices of attention and recurrent state, in that order.
[[nodiscard]] std::vector<LayerMatrix> mixer_matrices(const LayerSpec& layer, std::int64_t d_model);
/// Weight matrices of the feed-forward block: router, projections to and from the experts' latent
/// width, shared experts, then the dense block or the routed experts (gate, up, down).
[[nodiscard]] std::vector<LayerMatrix> feed_forward_matrices(const MlpSpec& mlp,
                                                             std::int64_t d_model);
[[nodiscard]] std::vector<CacheItem> cache_items(const LayerSpec& layer, Dtype kv_dtype);
/// What a quantised checkpoint packs such a matrix of a feed-forward block into; null: not packed.
[[nodiscard]] const WeightFormat* feed_forward_format(const MlpSpec& mlp,
                                                      const LayerMatrix& matrix);
/// `n` divided among `ranks`. Errors: InputError if it does not divide.
[[nodiscard]] std::int32_t divided(std::int32_t n, std::int32_t ranks, std::string_view what,
                                   std::string_view model);
/// Divides attention and recurrent state among `ranks`. Errors: InputError.
void shard_mixers(LayerSpec& layer, std::int32_t ranks, std::string_view model);

/// LayerKind::deal of its attention; recurrent states stay whole. Errors: InputError.
void deal_entries(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
                  std::string_view model);

/// Sizes of the attention operators of a layer; zeros where it has no attention.
[[nodiscard]] AttentionWork attention_work(const AttentionSpec& attention);
/// Operators of attention and recurrent state, other than products and attention itself.
[[nodiscard]] std::vector<MixerOp> mixer_operators(const LayerSpec& layer, const NewTokens& span);
/// Whether its attention caches rows that a method can compress: keys and values, or latents, of
/// every token that it sees. What other kinds cache stays full under every method.
[[nodiscard]] bool caches_rows(const LayerSpec& layer);
/// What a layer holds other than such rows: states, windows, indexes, compressed entries.
[[nodiscard]] std::vector<CacheItem> items_without_rows(const LayerSpec& layer, Dtype kv_dtype);
/// Bytes that a further token writes into such items, recurrent states aside.
[[nodiscard]] double written_per_token(const std::vector<CacheItem>& items);

[[nodiscard]] inline bool caches_latents(const LayerSpec& layer) {
  return attention_kind(layer.attention).caches_latents();
}
/// Most rows that such a layer holds, 0: they grow with the sequence.
[[nodiscard]] std::int64_t entry_limit(const AttentionSpec& attention);
[[nodiscard]] inline bool is_bounded(const AttentionSpec& attention) {
  return entry_limit(attention) > 0;
}
/// Entries it holds of `entries` that were written.
[[nodiscard]] inline std::int64_t within_limit(std::int64_t limit, std::int64_t entries) {
  return limit > 0 && entries > limit ? limit : entries;
}
[[nodiscard]] inline std::int64_t within_limit(const AttentionSpec& attention,
                                               std::int64_t entries) {
  return within_limit(entry_limit(attention), entries);
}

}  // namespace kvsim
