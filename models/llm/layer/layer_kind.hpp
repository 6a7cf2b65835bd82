#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/llm/layer/spec.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

/// The use of a matrix's output within its layer.
enum class MatrixRole : std::uint8_t {
  kInner,        // input of the next matrix
  kQuery,        // of attention
  kKey,          // as cached; a latent counts as a key
  kValue,        //
  kOutputInner,  // input of the projection back to the hidden width
  kOutput,       // the projection back to the hidden width
  kConvolution,  // channel-wise taps over the last tokens: not a product
  kSide          // of an index, a compressor, a gate, a recurrent state
};

/// A weight matrix of a layer, `in` x `out`.
struct LayerMatrix {
  std::string_view module{};     // name within the layer in checkpoints: "self_attn.q_proj"
  std::string_view operation{};  // name of its product in operator graphs: "query projection"
  std::string_view result{};     // name of the product's tensor: "queries"
  std::int64_t in = 0;
  std::int64_t out = 0;
  MatrixRole role = MatrixRole::kSide;
  WeightPart part = WeightPart::kLinear;
  std::int64_t count = 1;    // matrices of this size, e.g. routed experts
  std::int64_t visited = 1;  // matrices that one token visits
};

/// Sizes of the operators of attention.
struct AttentionWork {
  bool is_latent = false;  // one tensor of rows serves as keys and as values
  // Decode: elements of an entry that each query head scores and sums.
  std::int32_t score_width = 0;
  std::int32_t value_width = 0;
  // Cache: rows per token, elements of a row's key and of its value. Without rows, the held and
  // read bytes are defined only by the cache items, and no method compresses the cache.
  std::int32_t rows = 0;
  std::int32_t key_width = 0;
  std::int32_t row_value_width = 0;  // 0 for a latent, which is all key
  bool holds_rows = true;            // false: an earlier layer holds them
  std::int32_t context_ranks = 1;    // ranks that a sequence's tokens are distributed over
  // Prefill: elements of keys and values per token, and key heads.
  std::int64_t prompt_elements = 0;
  std::int32_t prompt_key_heads = 0;
  // Prefill: elements that each query head scores and sums.
  std::int32_t prompt_score_width = 0;
  std::int32_t prompt_value_width = 0;
  // Latent rows of earlier parts of a prompt are expanded again by a matrix of this many rows and
  // columns; 0: no expansion.
  std::int64_t expansion_in = 0;
  std::int64_t expansion_out = 0;

  /// Returns the elements that one token adds to the cache.
  [[nodiscard]] std::int64_t cached_elements() const {
    return std::int64_t{rows} * (key_width + row_value_width);
  }
  /// Returns the entries on the rank with the most, out of `tokens` entries.
  [[nodiscard]] std::int64_t held_here(std::int64_t tokens) const {
    return (tokens + context_ranks - 1) / context_ranks;
  }
  /// Returns the elements of a row, key and value.
  [[nodiscard]] std::int32_t row_width() const { return key_width + row_value_width; }
};

/// Content of a cache item.
enum class CacheRole : std::uint8_t { kEntries, kIndex, kState };

/// Memory that a layer holds per sequence: entries of one size, one per `ratio` tokens. A state is
/// a single entry, present from the first token.
struct CacheItem {
  CacheRole role = CacheRole::kEntries;
  double entry_bytes = 0;
  std::int64_t ratio = 1;     // tokens per entry
  std::int64_t max = 0;       // maximum number of entries; 0: unlimited
  std::int64_t max_read = 0;  // maximum number of entries read per decode step; 0: all
  bool is_held = true;        // false: another layer holds them

  [[nodiscard]] double held(std::int64_t tokens) const;
  [[nodiscard]] double read(std::int64_t tokens) const;
  /// Returns the bytes that one token adds once bounded items are full.
  [[nodiscard]] double per_token() const;
};

/// New tokens of one sequence, and the number of earlier ones.
struct NewTokens {
  double tokens = 1;
  double before = 0;
  bool decodes = true;  // one step, or the verification of a draft; false: part of a prompt

  [[nodiscard]] double end() const { return before + tokens; }
};

enum class MixerOpKind : std::uint8_t {
  kRecurrence,   // a state's update, step by step or in chunks of a scan
  kIndexScores,  // of an index's query heads with its keys
  kIndexChoice,  // top-k selection of an index
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
  bool is_8_bit = false;  // whether its arithmetic is in 8 bit
};

/// A kind of layer: its weights, cache, arithmetic and sharding over ranks. Each kind has one file.
/// A kind is stateless; a layer's sizes are in its LayerSpec.
class LayerKind {
 public:
  LayerKind() = default;
  LayerKind(const LayerKind&) = delete;
  LayerKind& operator=(const LayerKind&) = delete;
  virtual ~LayerKind() = default;

  /// Returns the name in results: "full", "window", "latent-index".
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Returns a short name of attention by its heads: "GQA", "MLA".
  [[nodiscard]] virtual std::string_view word(const LayerSpec& layer) const = 0;
  /// Whether its cache consists of latents, which all heads of a token share.
  [[nodiscard]] virtual bool caches_latents() const { return false; }
  /// Returns a description: "GQA: 32 query heads, 8 KV heads of 128".
  [[nodiscard]] virtual std::string describe(const LayerSpec& layer) const = 0;

  /// Adds the weight matrices in the order of execution; the output projection follows the last
  /// input.
  virtual void add_matrices(const LayerSpec& layer, std::int64_t d_model,
                            std::vector<LayerMatrix>& out) const = 0;
  /// Adds the cache items of one sequence with keys and values in `kv_dtype`.
  virtual void add_cache(const LayerSpec& layer, Dtype kv_dtype,
                         std::vector<CacheItem>& out) const = 0;
  /// Divides heads and channels among `ranks`. Throws InputError "MODEL has N heads, …".
  virtual void shard(LayerSpec& layer, std::int32_t ranks, std::string_view model) const = 0;
  /// Distributes the entries of a whole model's layer over `context` of the `ranks` ranks that
  /// would hold equal copies of them. Throws InputError if there are fewer copies, or if the engine
  /// does not support this for the kind of layer.
  virtual void deal(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
                    std::string_view model) const;

  /// Returns the sizes of its attention operators; nullopt for a layer without attention.
  [[nodiscard]] virtual std::optional<AttentionWork> work(const LayerSpec& layer) const;
  /// Returns the entries that decode attention reads in a sequence of `tokens` tokens.
  [[nodiscard]] virtual std::int64_t visited(const LayerSpec& layer, std::int64_t tokens) const;
  /// Returns the number of (query, key) pairs of one head over the first `tokens` tokens of a
  /// prompt: half the square, minus pairs outside the layer's view.
  [[nodiscard]] virtual double pairs(const LayerSpec& layer, double tokens) const;
  /// Adds its other operators for new tokens of a sequence.
  virtual void add_operators(const LayerSpec& layer, const NewTokens& span,
                             std::vector<MixerOp>& out) const;
};

/// Returns half the square of `tokens`, reduced if a layer holds at most `limit` entries; 0: no
/// limit.
[[nodiscard]] double causal_pairs(double tokens, std::int64_t limit);

/// Returns the kind of a layer's attention, and of its recurrent state; "none" if it has neither.
[[nodiscard]] const LayerKind& attention_kind(const AttentionSpec& attention);
[[nodiscard]] const LayerKind& state_kind(const StateSpec& state);
/// Returns both kinds of a layer, without "none".
[[nodiscard]] std::vector<const LayerKind*> mixer_kinds(const LayerSpec& layer);
/// Returns the names of both, joined by " + ": "full", "full + mamba2", "none".
[[nodiscard]] std::string kind_name(const LayerSpec& layer);

/// Returns the weight matrices of attention and recurrent state, in that order.
[[nodiscard]] std::vector<LayerMatrix> mixer_matrices(const LayerSpec& layer, std::int64_t d_model);
/// Returns the weight matrices of the feed-forward block: router, projections to and from the
/// experts' latent width, shared experts, then the dense block or the routed experts (gate, up,
/// down).
[[nodiscard]] std::vector<LayerMatrix> feed_forward_matrices(const MlpSpec& mlp,
                                                             std::int64_t d_model);
[[nodiscard]] std::vector<CacheItem> cache_items(const LayerSpec& layer, Dtype kv_dtype);
/// Returns the format of a feed-forward matrix in a quantised checkpoint; null if it is not packed.
[[nodiscard]] const WeightFormat* feed_forward_format(const MlpSpec& mlp,
                                                      const LayerMatrix& matrix);
/// Returns `n` divided by `ranks`. Throws InputError if it is not divisible.
[[nodiscard]] std::int32_t divided(std::int32_t n, std::int32_t ranks, std::string_view what,
                                   std::string_view model);
/// Divides attention and recurrent state among `ranks`. Throws InputError.
void shard_mixers(LayerSpec& layer, std::int32_t ranks, std::string_view model);

/// Applies LayerKind::deal to the attention; recurrent states stay whole. Throws InputError.
void deal_entries(LayerSpec& layer, std::int32_t ranks, std::int32_t context,
                  std::string_view model);

/// Returns the sizes of a layer's attention operators; zeros without attention.
[[nodiscard]] AttentionWork attention_work(const AttentionSpec& attention);
/// Returns the operators of attention and recurrent state except products and attention itself.
[[nodiscard]] std::vector<MixerOp> mixer_operators(const LayerSpec& layer, const NewTokens& span);
/// Whether its attention caches rows that a method can compress: keys and values, or latents, of
/// every visible token. Caches of other kinds stay full under every method.
[[nodiscard]] bool caches_rows(const LayerSpec& layer);
/// Returns the cache items of a layer other than such rows: states, windows, indexes, compressed
/// entries.
[[nodiscard]] std::vector<CacheItem> items_without_rows(const LayerSpec& layer, Dtype kv_dtype);
/// Returns the bytes that a further token writes into such items, excluding recurrent states.
[[nodiscard]] double written_per_token(const std::vector<CacheItem>& items);

[[nodiscard]] inline bool caches_latents(const LayerSpec& layer) {
  return attention_kind(layer.attention).caches_latents();
}
/// Returns the maximum number of rows of such a layer; 0 if it grows with the sequence.
[[nodiscard]] std::int64_t entry_limit(const AttentionSpec& attention);
[[nodiscard]] inline bool is_bounded(const AttentionSpec& attention) {
  return entry_limit(attention) > 0;
}
/// Returns the number of entries held after `entries` were written.
[[nodiscard]] inline std::int64_t within_limit(std::int64_t limit, std::int64_t entries) {
  return limit > 0 && entries > limit ? limit : entries;
}
[[nodiscard]] inline std::int64_t within_limit(const AttentionSpec& attention,
                                               std::int64_t entries) {
  return within_limit(entry_limit(attention), entries);
}

}  // namespace kvsim
