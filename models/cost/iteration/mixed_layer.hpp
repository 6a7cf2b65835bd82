#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "models/cost/cache_rows.hpp"
#include "models/cost/iteration/mixed.hpp"
#include "models/cost/layer/dealt.hpp"
#include "models/cost/layer/layer_builder.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/cost/op.hpp"
#include "models/cost/step.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/streaming_heads.hpp"

namespace kvsim {

/// Layers of equal cost in an iteration: with equal specification, method kind and layer class.
struct MixedColumn {
  std::int32_t first = 0;  // layer
  std::int32_t layer_class = 0;
  std::int32_t layers = 0;
  std::int32_t first_equal = 0;  // first column of equal layers, possibly of another class
};
struct MixedColumns {
  std::vector<MixedColumn> columns;
  std::vector<std::int32_t> of_layer;              // column of each layer
  std::vector<MixedStepCost::LayerClass> classes;  // in the order of their first layers
};
[[nodiscard]] MixedColumns mixed_columns(const Llm& llm, const Method& method);

/// Decoding sequences from the view of one layer.
struct DecodeBatch {
  std::int64_t sequences = 0;
  std::int64_t tokens = 1;  // per sequence
  DecodeLoad load{};
  bool with_prompts = false;  // the iteration also has prompt tokens

  friend bool operator==(const DecodeBatch&, const DecodeBatch&) = default;
};

/// The work of one layer between its projections in an iteration. Graphs and costs share this list
/// of operators. `in` is for one sequence (batch 1) and must outlive it.
class MixedLayer {
 public:
  MixedLayer(const CostInput& in, std::int32_t layer);

  /// Cache traffic of chunks.
  struct ChunkWrites {
    double read = 0;  // bytes
    double written = 0;
    double copied = 0;  // entries of caches that are extended by copying
    double other = 0;   // bytes of items other than rows
    bool any = false;
  };
  [[nodiscard]] ChunkWrites chunk_writes(std::span<const PrefillChunk> chunks) const;
  /// Calls `add(op)` for every operator that writes the new entries into the cache.
  template <class Add>
  void write(const DecodeBatch& decodes, const ChunkWrites& chunks, Add&& add) const;
  /// Adds decode attention and the method's own work.
  template <class Add>
  void decode(const DecodeBatch& decodes, Add&& add) const;
  /// Adds the chunks' attention: one kernel for all, each with its own prefix. Streaming heads
  /// attend to fewer tokens of earlier pieces and are a separate kernel.
  template <class Add>
  void prefill(std::span<const PrefillChunk> chunks, Add&& add) const;

 private:
  /// Adds the operators of an index or a recurrent state.
  template <class Add>
  void mix(const DecodeBatch& decodes, Add&& add) const;
  template <class Add>
  void mix(std::span<const PrefillChunk> chunks, Add&& add) const;
  /// Returns attention of layers without rows.
  [[nodiscard]] Op attend_items(const DecodeBatch& decodes) const;
  [[nodiscard]] Op attend_items(std::span<const PrefillChunk> chunks) const;
  [[nodiscard]] bool has_rows() const { return work_.rows > 0; }

  /// Traffic per token of a sequence: base + slope * attended, if `holds`.
  struct Line {
    StepTraffic base{};
    StepTraffic slope{};
    bool holds = false;
  };
  struct Sums {
    StepTraffic all{};    // of all sequences, without moves
    StepTraffic moved{};  // moves of sequences that do not rewrite all entries
    StepTraffic gathered{};
  };
  [[nodiscard]] Line line(bool evicts) const;
  [[nodiscard]] StepTraffic traffic(double attended, bool evicts) const {
    const Line& known = lines_[evicts ? 1 : 0];
    if (!known.holds) return traffic_of_method(attended, evicts);
    StepTraffic out = known.slope * attended;
    out += known.base;
    return out;
  }
  [[nodiscard]] StepTraffic traffic_of_method(double attended, bool evicts) const;
  /// Returns the attended entries of all sequences.
  [[nodiscard]] double attended(const DecodeBatch& decodes) const;
  [[nodiscard]] Sums sums(const DecodeBatch& decodes, double attended) const;
  [[nodiscard]] double size(double elements) const { return elements * element_bytes_; }
  [[nodiscard]] std::optional<KernelUse> decode_use(const DecodeBatch& decodes, double attended,
                                                    double attention_read) const;
  /// Adds the chunks' attention for a share of the heads.
  template <class Add>
  void attend(std::span<const PrefillChunk> chunks, double share, Add&& add) const;
  /// As LayerBuilder::load_reused.
  template <class Add>
  void load_reused(std::span<const PrefillChunk> chunks, Add&& add) const;
  /// Returns the chunks from the view of streaming heads; empty if it is that of all heads.
  [[nodiscard]] std::vector<PrefillChunk> streamed(std::span<const PrefillChunk> chunks) const;
  [[nodiscard]] static double tokens_of(std::span<const PrefillChunk> chunks) {
    double sum = 0;
    for (const PrefillChunk& chunk : chunks) sum += static_cast<double>(chunk.tokens);
    return sum;
  }
  /// Returns a chunk with the mean number of tokens and the mean number of (query, key) pairs.
  [[nodiscard]] static NewTokens mean_of(std::span<const PrefillChunk> chunks);
  [[nodiscard]] std::optional<KernelUse> prefill_use(std::span<const PrefillChunk> chunks,
                                                     double share) const;
  [[nodiscard]] double pairs(const PrefillChunk& chunk) const;
  /// Returns the entries of an earlier part of the prompt that a chunk attends to.
  [[nodiscard]] std::int64_t prefix(const PrefillChunk& chunk) const {
    return within_limit(limit_, chunk.before);
  }
  /// Returns the bytes written to store a chunk.
  [[nodiscard]] double stored(const PrefillChunk& chunk) const;
  /// Returns the product of the prefix' latents with the weights that expand them.
  [[nodiscard]] Op expansion(std::int64_t rows) const;
  template <class Add>
  void softmax(double n, double mask, Dtype element, Add&& add) const;
  void check(const DecodeBatch& decodes) const;

  const CostInput& in_;
  const Stack& stack_;
  const LayerSpec& spec_;
  const AttentionSpec& a_;
  AttentionWork work_;
  CacheRows rows_;
  std::int32_t layer_;
  std::int64_t limit_;  // maximum number of entries; 0: no limit
  Dtype dtype_;         // of activations
  double element_bytes_;
  bool fused_, math_;
  bool by_copy_;                         // the stack grows a cache by copying it
  bool concats_;                         // this includes the method's rows
  bool expands_;                         // keys and values are repeated to the query heads
  bool writes_chunks_;                   // a prompt's keys and values are copied into the cache
  std::int32_t parts_;                   // tensors of the cache
  std::array<double, 2> entry_bytes_{};  // plain rows: an entry's keys and values
  double stored_entry_bytes_;            // stored keys and values of an entry; the mean for formats
                                         // whose rows differ
  double kv_elements_;                   // new elements per token
  double kv_attended_;                   // of these, the elements read by prefill attention
  double prefix_entry_bytes_;            // per cached token read by prefill attention
  double other_written_;                 // bytes per token written to items other than rows
  const KernelFormat* decode_format_;
  const KernelFormat* prefill_format_;
  std::int32_t extra_launches_;
  bool mixes_;        // an index or a state has operators
  bool column_sums_;  // eager attention computes column sums for the method
  double score_copies_;
  StreamingHeads streaming_;
  double prompt_share_ = 1;    // computed share of the prompt's attention
  PromptPart part_;            // of the prompt
  std::array<Line, 2> lines_;  // not evicting, evicting
};

template <class Add>
void MixedLayer::write(const DecodeBatch& decodes, const ChunkWrites& chunks, Add&& add) const {
  const double others =
      other_written_ * static_cast<double>(decodes.sequences * decodes.tokens) + chunks.other;
  if (others > 0) {
    add(Op{.name = "entry append",
           .family = OpFamily::kCacheWrite,
           .bytes_read = others,
           .bytes_written = others,
           .dtype = dtype_});
  }
  if (!has_rows() || !work_.holds_rows) return;
  std::int64_t appends = decodes.sequences;
  double copied = chunks.copied;
  if (concats_ && decodes.sequences > 0) {
    // Every cache is copied into a longer one. If a cache is full, an entry is evicted, and the new
    // one takes its slot unless all entries are rewritten.
    const DecodeLoad& load = decodes.load;
    copied += load.held + static_cast<double>(load.evicting + load.sliding);
    appends = load.evicting - load.rewriting + load.sliding;
  }
  for (std::int32_t part = 0; copied > 0 && part < parts_; ++part) {
    const double bytes = copied * entry_bytes_[static_cast<std::size_t>(part)];
    add(Op{.name = part == 0 ? "concat keys" : "concat values",
           .family = OpFamily::kConcatCopy,
           .bytes_read = bytes,
           .bytes_written = bytes,
           .dtype = rows_.dtype()});
  }
  double appended = 0;
  if (appends > 0) {
    const double mean = attended(decodes) / static_cast<double>(decodes.sequences);
    const bool evicts = decodes.load.evicting == decodes.sequences;
    appended = traffic(mean, evicts).append_write * static_cast<double>(appends) *
               static_cast<double>(decodes.tokens) / work_.context_ranks;
  }
  if (appends == 0 && !chunks.any) return;
  add(Op{.name = chunks.any ? "cache write" : "cache append",
         .family = OpFamily::kCacheWrite,
         .bytes_read = appended + chunks.read,
         .bytes_written = appended + chunks.written,
         .launches = chunks.any ? 2 : 1,
         .dtype = dtype_});
}

template <class Add>
void MixedLayer::mix(const DecodeBatch& decodes, Add&& add) const {
  if (!mixes_) return;
  const double mean = decodes.load.held / static_cast<double>(decodes.sequences);
  const auto tokens = static_cast<double>(decodes.tokens);
  const auto sequences = static_cast<double>(decodes.sequences);
  // Drafts are verified by the decode kernel.
  const bool scans = decodes.with_prompts && decodes.tokens == 1 && scans_decodes(stack_, spec_);
  std::vector<Op> ops;
  add_mixer_operators(spec_,
                      {.tokens = tokens, .before = std::max(0.0, mean - tokens), .decodes = !scans},
                      dtype_, sequences, ops);
  if (scans) ops.push_back(state_copies(spec_, sequences));
  for (const Op& op : ops) add(op);
}

template <class Add>
void MixedLayer::mix(std::span<const PrefillChunk> chunks, Add&& add) const {
  if (!mixes_) return;
  std::vector<Op> ops;
  for (const PrefillChunk& chunk : chunks) {
    const NewTokens span{.tokens = static_cast<double>(chunk.tokens),
                         .before = static_cast<double>(chunk.before),
                         .decodes = false};
    add_mixer_operators(spec_, split_span(span, stack_.prefill_context), dtype_, 1, ops);
  }
  if (chunks.size() > 1) {
    use_mean_kernels(spec_, split_span(mean_of(chunks), stack_.prefill_context),
                     static_cast<double>(chunks.size()), 1, ops);
  }
  for (Op& op : ops) {
    op.launches = 1;  // over a ragged batch
    add(op);
  }
  if (scans_copies(stack_, spec_)) {
    add(state_copies(spec_, static_cast<double>(chunks.size())));
  }
}

template <class Add>
void MixedLayer::softmax(double n, double mask, Dtype element, Add&& add) const {
  const double wide = n * 4;
  const double narrow = n * bits_of(element) / 8.0;
  const std::int32_t passes = stack_.score_passes;
  if (passes > 0) {
    add(Op{.name = "scale and mask",
           .family = OpFamily::kElementwise,
           .bytes_read = narrow * passes + mask,
           .bytes_written = narrow * passes,
           .launches = passes,
           .dtype = element});
    mask = 0;
  }
  add(Op{.name = "softmax",
         .family = OpFamily::kElementwise,
         .bytes_read = narrow + mask,
         .bytes_written = stack_.softmax_fp32 ? wide : narrow,
         .launches = passes > 0 ? 1 : 2,
         .dtype = Dtype::kFp32});
  if (!stack_.softmax_fp32 || element == Dtype::kFp32) return;
  add(Op{.name = "softmax cast",
         .family = OpFamily::kElementwise,
         .bytes_read = wide,
         .bytes_written = narrow,
         .dtype = Dtype::kFp32});
}

template <class Add>
void MixedLayer::decode(const DecodeBatch& decodes, Add&& add) const {
  if (decodes.sequences == 0) return;
  check(decodes);
  mix(decodes, add);
  const double heads = a_.n_heads;
  const auto batch = static_cast<double>(decodes.sequences);
  const auto tokens = static_cast<double>(decodes.tokens);
  if (a_.n_heads > 0) {
    for (const Op& op : gather_queries(work_, batch * tokens, heads, dtype_)) add(op);
  }
  if (!has_rows()) {
    if (a_.n_heads > 0) {
      add(attend_items(decodes));
      for (const Op& op : combine_outputs(work_, batch * tokens, heads, dtype_)) add(op);
    }
    return;
  }
  const double entries = attended(decodes);
  const Sums of = sums(decodes, entries);
  const double q = batch * tokens * heads * a_.head_dim;
  const double out = batch * tokens * heads * a_.v_head_dim;
  // Absorbed latent attention: every head scores and sums latent rows. The last of a sequence's new
  // tokens attends to all of the others, the first to none.
  const double score_width = work_.score_width;
  const double value_width = work_.value_width;
  const double pairs = heads * (tokens * entries - batch * tokens * (tokens - 1) / 2);
  const std::int32_t ranks = work_.context_ranks;
  double cache_read = of.all.attention_read;
  if (expands_ && a_.n_heads > rows_.stored_heads()) {
    const double n = entries * heads * (a_.head_dim + a_.v_head_dim);
    add(Op{.name = "repeat keys and values",
           .family = OpFamily::kExpandCopy,
           .bytes_read = cache_read,
           .bytes_written = size(n),
           .launches = 2,
           .dtype = dtype_});
    cache_read = size(n);
  }
  const auto concat = [&](std::string_view name, double bytes, Dtype element,
                          std::int32_t launches) {
    if (!by_copy_ || bytes <= 0) return;
    add(Op{.name = name,
           .family = OpFamily::kConcatCopy,
           .bytes_read = bytes,
           .bytes_written = bytes,
           .launches = launches,
           .dtype = element});
  };
  concat("concat packed rows", of.all.repacked, kPackedDtype, kPackedTensors);
  concat("concat waiting rows", of.all.recopied, in_.kv_dtype, 2);
  if (of.all.rotated > 0 && runs_by_operators(stack_)) {
    const std::int32_t passes = rotation_passes(stack_);
    add(Op{.name = "rotate cached keys",
           .family = OpFamily::kRope,
           .bytes_read = of.all.rotated * passes,
           .bytes_written = of.all.rotated * passes,
           .launches = passes,
           .dtype = dtype_});
  }
  if (fused_) {
    add(Op{.name = "attention",
           .family = OpFamily::kDecodeAttention,
           .flops = FlopCount{2 * pairs * (score_width + value_width)},
           .bytes_read = cache_read + ranks * size(q),
           .bytes_written = ranks * size(out),
           .dtype = dtype_,
           .blocks =
               stack_.splits_keys && stack_.attention_per_clock == 0 ? 0.0 : batch * heads * ranks,
           .kernel = decode_use(decodes, entries, of.all.attention_read)});
    for (const Op& op : combine_outputs(work_, batch * tokens, heads, dtype_)) add(op);
  } else {
    const double share = score_width / (score_width + value_width);
    Dtype element = dtype_;
    const auto wide = [&](double elements) { return elements * bits_of(element) / 8.0; };
    if (math_) {
      const double row = work_.row_width();
      const bool repeats = expands_ && a_.n_heads > rows_.stored_heads();
      const double rows = entries * (repeats ? heads : rows_.stored_heads()) * row;
      if (bits_of(dtype_) < bits_of(Dtype::kFp32)) {
        element = Dtype::kFp32;
        add(Op{.name = "rows in fp32",
               .family = OpFamily::kElementwise,
               .bytes_read = cache_read + size(q),
               .bytes_written = wide(rows + q),
               .launches = 3,
               .dtype = element});
        cache_read = wide(rows);
      }
      const double keys = work_.is_latent ? cache_read : cache_read * share;
      add(Op{.name = "scale queries and keys",
             .family = OpFamily::kElementwise,
             .bytes_read = keys + wide(q),
             .bytes_written = wide(rows * (work_.is_latent ? 1 : share) + q),
             .launches = 2,
             .dtype = element});
    }
    add(Op{.name = "attention scores",
           .family = OpFamily::kDecodeAttention,
           .flops = FlopCount{2 * pairs * score_width},
           .bytes_read = cache_read * share + wide(q),
           .bytes_written = wide(pairs),
           .dtype = element});
    softmax(pairs, 0, element, add);
    add(Op{.name = "attention values",
           .family = OpFamily::kDecodeAttention,
           .flops = FlopCount{2 * pairs * value_width},
           .bytes_read = cache_read * (1 - share) + wide(pairs),
           .bytes_written = size(out),
           .dtype = element});
  }
  if ((fused_ || math_) && of.all.score_row_read + of.all.score_row_write > 0) {
    add(Op{.name = "score row",
           .family = OpFamily::kScorePass,
           .bytes_read = of.all.score_row_read,
           .bytes_written = of.all.score_row_write,
           .dtype = Dtype::kFp32});
  }
  if (extra_launches_ > 0 || of.all.side_read + of.all.side_write + of.all.extra_flops > 0) {
    add(Op{.name = "method",
           .family = OpFamily::kMethod,
           .flops = FlopCount{of.all.extra_flops},
           .bytes_read = of.all.side_read,
           .bytes_written = of.all.side_write,
           .launches = extra_launches_,
           .dtype = Dtype::kFp32});
  }
  if (of.all.link_read + of.all.link_write > 0) {
    add(Op{.name = "host copy",
           .family = OpFamily::kHostCopy,
           .bytes_read = of.all.link_read,
           .bytes_written = of.all.link_write,
           .dtype = dtype_});
  }
  for (std::int32_t part = 0; decodes.load.rewriting > 0 && part < parts_; ++part) {
    const double share = 1.0 / parts_;
    add(Op{.name = part == 0 ? "gather keys" : "gather values",
           .family = OpFamily::kCompaction,
           .bytes_read = of.gathered.move_read * share,
           .bytes_written = of.gathered.move_write * share,
           .dtype = dtype_});
  }
  if (decodes.load.compacted > 0) {
    const double bytes = decodes.load.compacted * stored_entry_bytes_;
    add(Op{.name = "close holes",
           .family = OpFamily::kCompaction,
           .bytes_read = bytes,
           .bytes_written = bytes,
           .launches = parts_,
           .dtype = dtype_});
  }
  // Keys that are rotated by their index must stay in order: kept entries are copied together.
  const std::int64_t cut = decodes.load.evicting - decodes.load.rewriting;
  const bool keeps_copy = concats_ && of.all.rotated > 0 && cut > 0;
  for (std::int32_t part = 0; keeps_copy && part < parts_; ++part) {
    const double bytes = decodes.load.held / batch * static_cast<double>(cut) *
                         entry_bytes_[static_cast<std::size_t>(part)];
    add(Op{.name = part == 0 ? "keep keys" : "keep values",
           .family = OpFamily::kConcatCopy,
           .bytes_read = bytes,
           .bytes_written = bytes,
           .dtype = rows_.dtype()});
  }
  if (of.moved.move_read + of.moved.move_write > 0) {
    add(Op{.name = "evict and merge",
           .family = OpFamily::kCompaction,
           .bytes_read = of.moved.move_read,
           .bytes_written = of.moved.move_write,
           .dtype = dtype_});
  }
}

template <class Add>
void MixedLayer::prefill(std::span<const PrefillChunk> chunks, Add&& add) const {
  if (chunks.empty()) return;
  std::vector<PrefillChunk> of_part;
  if (part_.attended < 1) {
    of_part = attended_of(part_, chunks);
    chunks = of_part;
  }
  if (part_.reused) load_reused(chunks, add);
  for (const Op& op : gather_new_entries(stack_, a_, tokens_of(chunks), dtype_)) add(op);
  mix(chunks, add);
  if (!has_rows()) {
    if (a_.n_heads > 0) {
      const double tokens = tokens_of(chunks);
      for (const Op& op : gather_queries(work_, tokens, a_.n_heads, dtype_)) add(op);
      add(attend_items(chunks));
      for (const Op& op : combine_outputs(work_, tokens, a_.n_heads, dtype_)) add(op);
    }
    return;
  }
  const std::vector<PrefillChunk> near = streamed(chunks);
  if (near.empty()) {
    attend(chunks, 1, add);
    return;
  }
  if (streaming_.share < 1) attend(chunks, 1 - streaming_.share, add);
  attend(near, streaming_.share, add);
}

template <class Add>
void MixedLayer::load_reused(std::span<const PrefillChunk> chunks, Add&& add) const {
  double bytes = 0;
  for (const PrefillChunk& chunk : chunks) bytes += stored(chunk);
  add(Op{.name = "reused rows from host memory",
         .family = OpFamily::kHostCopy,
         .bytes_read = bytes,
         .stream = 1,
         .dtype = rows_.dtype()});
  add(Op{.name = "place reused rows",
         .family = OpFamily::kCacheWrite,
         .bytes_read = bytes,
         .bytes_written = bytes,
         .launches = 2,
         .dtype = rows_.dtype()});
}

template <class Add>
void MixedLayer::attend(std::span<const PrefillChunk> chunks, double share, Add&& add) const {
  const double heads = share * a_.n_heads;
  std::int64_t cached = 0, expanded = 0;
  double tokens = 0, causal = 0, whole = 0;
  const double queried = part_.computed / part_.attended;
  for (const PrefillChunk& chunk : chunks) {
    cached += prefix(chunk);
    // Includes the tokens that are not computed.
    const std::int64_t computed = PromptPart{.computed = queried}.computed_of(chunk.tokens);
    expanded += expanded_before(prefix(chunk), chunk.tokens, computed, stack_.prefill_context);
    tokens += static_cast<double>(chunk.tokens);
    causal += pairs(chunk);
    whole += static_cast<double>(chunk.tokens * (chunk.before + chunk.tokens));
  }
  const auto before = static_cast<double>(cached);
  const double q = queried * tokens * heads * a_.head_dim;
  const double out = queried * tokens * heads * a_.v_head_dim;
  const double latents = before * kv_elements_ * bits_of(in_.kv_dtype) / 8.0;
  for (const Op& op : gather_latents(work_, latents, in_.kv_dtype)) add(op);
  if (!work_.is_latent) {
    for (const Op& op : gather_queries(work_, tokens, heads, dtype_)) add(op);
  }
  if (work_.expansion_in > 0 && expanded > 0) add(expansion(expanded));
  double kv_read = share * (size(tokens * kv_attended_) + before * prefix_entry_bytes_);
  if (expands_ && a_.n_heads > a_.n_kv_heads) {
    const double repeated = (tokens + before) * kv_attended_ / a_.n_kv_heads * heads;
    add(Op{.name = "repeat keys and values",
           .family = OpFamily::kExpandCopy,
           .bytes_read = kv_read,
           .bytes_written = size(repeated),
           .launches = 2,
           .dtype = dtype_});
    kv_read = size(repeated);
  }
  if (fused_ || math_) {
    const double ranks = work_.is_latent ? 1 : work_.context_ranks;  // ranks whose queries it has
    add(Op{.name = "prompt attention",
           .family = OpFamily::kPrefillAttention,
           .flops = FlopCount{2 * heads * causal * queried * prompt_share_ *
                              (a_.head_dim + a_.v_head_dim)},
           .bytes_read = ranks * size(q) + kv_read,
           .bytes_written = ranks * size(out),
           .dtype = dtype_,
           .kernel = prefill_use(chunks, share * prompt_share_)});
    if (!work_.is_latent) {
      for (const Op& op : combine_outputs(work_, tokens, heads, dtype_)) add(op);
    }
    return;
  }
  // Complete matrices, regardless of the mask.
  whole *= queried;
  const double n = heads * whole;
  add(Op{.name = "prompt attention scores",
         .family = OpFamily::kPrefillAttention,
         .flops = FlopCount{2 * n * a_.head_dim},
         .bytes_read = size(q) + kv_read / 2,
         .bytes_written = size(n),
         .dtype = dtype_});
  softmax(n, size(whole), dtype_, add);
  add(Op{.name = "prompt attention values",
         .family = OpFamily::kPrefillAttention,
         .flops = FlopCount{2 * n * a_.v_head_dim},
         .bytes_read = size(n) + kv_read / 2,
         .bytes_written = size(out),
         .dtype = dtype_});
  if (column_sums_) {
    add(Op{.name = "column sums",
           .family = OpFamily::kScorePass,
           .flops = FlopCount{n},
           .bytes_read = size(n) * (1 + score_copies_),
           .bytes_written = size(n) * score_copies_,
           .dtype = dtype_});
  }
}

}  // namespace kvsim
