#include <algorithm>
#include <cmath>

#include "models/cost/layer/dealt.hpp"
#include "models/cost/layer/layer_builder.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/cost/rates/kernel_use.hpp"
#include "models/methods/resolve/prompt_share.hpp"
#include "models/methods/streaming_heads.hpp"

namespace kvsim {
namespace {

// Query rows of ScoreExec::kEagerChunked without memory pressure.
constexpr std::int64_t kScoreChunk = 1024;

/// Scales work to a share of the heads. Its time is that share as well: pieces of prompts have
/// enough blocks to fill a GPU with some of the heads.
void scale(Op& op, double share) {
  op.flops = op.flops * share;
  op.bytes_read *= share;
  op.bytes_written *= share;
  if (op.kernel) op.kernel->times *= share;
}

}  // namespace

/// Returns the kernel of a fused causal attention. Windows shorter than the prompt have no
/// measurements. Queries of part of the tokens are modelled as a piece with the same number of
/// keys.
std::optional<KernelUse> LayerBuilder::prefill_use(std::int64_t prompt) const {
  const AttentionSpec& a = attention_;
  if (within_limit(a, prompt) < prompt) return std::nullopt;
  const KernelFormat* format = shared_attention_format(dtype_, dtype_);
  const auto batch = static_cast<double>(in_.batch);
  const auto tokens = static_cast<double>(tokens_);
  // A pass processes as many whole prompts as fit, or a piece of one.
  const auto held = static_cast<double>(held_);
  const double together = std::clamp(std::floor(held / tokens), 1.0, batch);
  KernelUse use{.format = format, .times = batch / together, .chunk = tokens > held ? held : 0};
  if (work_.is_latent) {
    use.call = MlaCall{.decode = false, .batch = together, .seq_len = tokens, .heads = a.n_heads};
  } else {
    use.call =
        PrefillAttentionCall{.batch = together,
                             .new_tokens = tokens,
                             .q_heads = a.n_heads,
                             .kv_heads = in_.stack->expands_kv_heads ? a.n_heads : a.n_kv_heads,
                             .head_dim = a.head_dim};
  }
  if (tokens_ < prompt) {
    use.call = prompt_piece(use.call, tokens, (static_cast<double>(prompt) - tokens) / 2);
  }
  return use;
}

/// Returns the cached tokens read by the pieces of a prompt, summed over pieces.
std::int64_t LayerBuilder::cached_before(std::int64_t prompt) const {
  const std::int64_t piece = piece_of(prompt);
  const std::int64_t whole = prompt / piece;
  return piece * whole * (whole - 1) / 2 + (prompt % piece > 0 ? piece * whole : 0);
}

/// Returns the pieces of a prompt in heads that hold at most `entries` entries between pieces.
LayerBuilder::Pieces LayerBuilder::streamed(std::int64_t prompt, std::int64_t entries) const {
  Pieces out;
  const std::int64_t limit = entry_limit(attention_);
  for (std::int64_t done = 0; done < prompt; done += held_) {
    const std::int64_t before = std::min(done, entries);
    const std::int64_t tokens = std::min(held_, prompt - done);
    out.pairs += causal_pairs(static_cast<double>(before + tokens), limit) -
                 causal_pairs(static_cast<double>(before), limit);
    out.cached += before;
    ++out.count;
  }
  return out;
}

/// Returns attention of a share of the heads, derived from attention of `all` heads; the share
/// reads only the entries in `pieces` of earlier pieces.
Op LayerBuilder::attend_streamed(const Op& all, double share, std::int64_t prompt,
                                 const Pieces& pieces) const {
  const AttentionSpec& a = attention_;
  const double q = size(m_ * a.n_heads * a.head_dim, dtype_);
  const auto tokens = static_cast<double>(prompt);
  const double whole = tokens + static_cast<double>(cached_before(prompt));
  Op op = all;
  op.name = "attention of streaming heads";
  op.flops = FlopCount{2 * share * static_cast<double>(in_.batch) * a.n_heads * pieces.pairs *
                       static_cast<double>(a.head_dim + a.v_head_dim)};
  op.bytes_read =
      share * (q + (all.bytes_read - q) / whole * (tokens + static_cast<double>(pieces.cached)));
  op.bytes_written = share * all.bytes_written;
  // A prompt's first piece processes all heads in one kernel.
  if (share < 1) op.launches = static_cast<std::int32_t>(in_.batch * (pieces.count - 1));
  if (!op.kernel) return op;
  // Represented by equal pieces with the same numbers of tokens and (query, key) pairs.
  const auto count = static_cast<double>(pieces.count);
  const double mean = tokens / count;
  op.kernel->call = prompt_piece(op.kernel->call, mean, pieces.pairs / tokens - mean / 2);
  op.kernel->times *= share * count;
  op.kernel->chunk = 0;
  return op;
}

OpIndex LayerBuilder::attend_prompt(const Projected& qkv, std::int64_t prompt) {
  if (!has_attention()) return qkv.op;
  if (work_.rows == 0) return attend_prompt_items(qkv, prompt);
  const AttentionSpec& a = attention_;
  const auto batch = static_cast<double>(in_.batch);
  const auto heads = static_cast<double>(a.n_heads);
  const std::int64_t q = m_ * a.n_heads * a.head_dim;
  const std::int64_t out = m_ * a.n_heads * a.v_head_dim;
  const Product output = rows(out / m_, a.n_heads, "query heads");
  const std::int64_t kv = in_.batch * prompt * work_.prompt_elements;
  OpIndex at = qkv.op;
  const std::int64_t cached = cached_before(prompt);
  const double latents = size(in_.batch * cached * work_.cached_elements(), in_.kv_dtype);
  for (const Op& op : gather_latents(work_, latents, in_.kv_dtype, passes_)) {
    at = graph_.add(op, {at});
  }
  if (!work_.is_latent) {
    for (const Op& op : gather_queries(work_, static_cast<double>(m_), heads, dtype_, passes_)) {
      at = graph_.add(op, {at});
    }
  }
  // Latents of tokens that are not computed are expanded as well.
  if (const std::int64_t others =
          expanded_before(cached, prompt, tokens_, in_.stack->prefill_context);
      work_.expansion_in > 0 && others > 0) {
    at = gemm("latent expansion of the prefix", in_.batch * others, work_.expansion_in,
              work_.expansion_out, at, place_of(matrix_of(MatrixRole::kValue)));
  }
  std::int64_t kv_read = kv;
  std::optional<std::size_t> expanded;
  if (in_.stack->expands_kv_heads && !work_.is_latent && a.n_heads > a.n_kv_heads) {
    kv_read = kv / a.n_kv_heads * a.n_heads;
    at = stream("repeat keys and values", OpFamily::kExpandCopy, kv, kv_read, at, 2);
    expanded = hold("repeated keys and values", Owner::kKvExpansion,
                    Product{}
                        .times(in_.batch, "batch")
                        .times(prompt, "entries")
                        .times(a.n_heads, "query heads")
                        .times(work_.prompt_elements / a.n_kv_heads)
                        .in(dtype_),
                    at);
  }
  if (in_.stack->attention != AttentionExec::kEager) {
    const double pairs = attention_kind(a).pairs(spec_, static_cast<double>(prompt)) *
                         static_cast<double>(tokens_) / static_cast<double>(prompt);
    // A rank reads its own keys and values of earlier pieces; latents were expanded.
    const double ranks = work_.is_latent ? 1 : work_.context_ranks;  // ranks whose queries it has
    const double found = static_cast<double>(cached) / ranks;
    Op attention{.name = "attention",
                 .family = OpFamily::kPrefillAttention,
                 .flops = FlopCount{2 * batch * heads * pairs *
                                    static_cast<double>(a.head_dim + a.v_head_dim)},
                 // Each piece reads the entries cached by earlier ones.
                 .bytes_read = ranks * size(q, dtype_) + size(kv_read, dtype_) *
                                                             (static_cast<double>(prompt) + found) /
                                                             static_cast<double>(prompt),
                 .bytes_written = ranks * size(out, dtype_),
                 .launches = passes_,
                 .dtype = dtype_,
                 .kernel = prefill_use(prompt)};
    // Keys and values are read completely: query heads skip different tiles.
    const double computed = prompt_attention_share(*in_.method, prompt);
    attention.flops = attention.flops * computed;
    if (attention.kernel) attention.kernel->times *= computed;
    // A latent serves all heads: entries evicted by some heads are still held for others.
    const StreamingHeads streaming =
        work_.is_latent || cached == 0
            ? StreamingHeads{}
            : streaming_heads(*in_.method, llm_.n_layers(), rows_.stored_heads());
    const Pieces pieces = streaming.share > 0 ? streamed(prompt, streaming.entries) : Pieces{};
    if (streaming.share == 0 || pieces.cached == cached) {
      at = graph_.add(attention, {at});
      if (!work_.is_latent) {
        for (const Op& op :
             combine_outputs(work_, static_cast<double>(m_), heads, dtype_, passes_)) {
          at = graph_.add(op, {at});
        }
      }
      attended_ = activation("attention output", output, at);
      drop(expanded, at);
      return at;
    }
    const Op near = attend_streamed(attention, streaming.share, prompt, pieces);
    if (streaming.share < 1) {
      scale(attention, 1 - streaming.share);
      at = graph_.add(attention, {at});
      attended_ = activation("attention output", output, at);
    }
    at = graph_.add(near, {at});
    if (streaming.share == 1) attended_ = activation("attention output", output, at);
    drop(expanded, at);
    return at;
  }

  // Matmul, softmax in fp32, cast back, matmul: complete matrices, regardless of the mask.
  const std::int64_t n = m_ * a.n_heads * prompt;
  const double square = static_cast<double>(n);
  at = graph_.add({.name = "attention scores",
                   .family = OpFamily::kPrefillAttention,
                   .flops = FlopCount{2 * square * a.head_dim},
                   .bytes_read = size(q, dtype_) + size(kv_read, dtype_) / 2,
                   .bytes_written = size(n, dtype_),
                   .dtype = dtype_},
                  {at});
  std::size_t weights = 0;
  const Product scores = score_rows(prompt, "tokens");
  at = eager_softmax(n, scores, size(m_ * prompt, dtype_), dtype_, at, weights);
  at = graph_.add({.name = "attention values",
                   .family = OpFamily::kPrefillAttention,
                   .flops = FlopCount{2 * square * a.v_head_dim},
                   .bytes_read = size(n, dtype_) + size(kv_read, dtype_) / 2,
                   .bytes_written = size(out, dtype_),
                   .dtype = dtype_},
                  {at});
  attended_ = activation("attention output", output, at);
  drop(expanded, at);
  const MethodNeeds needs = in_.method->needs();
  if (needs.prompt_scores == PromptScoreClass::kColumnSums) {
    const double copies = std::max(0, needs.score_copies - 1);
    at = graph_.add({.name = "column sums",
                     .family = OpFamily::kScorePass,
                     .flops = FlopCount{square},
                     .bytes_read = size(n, dtype_) * (1 + copies),
                     .bytes_written = size(n, dtype_) * copies,
                     .dtype = dtype_},
                    {at});
    for (std::int32_t i = 1; i < needs.score_copies; ++i) {
      hold_during("copy of the attention scores", Owner::kScores, Product{scores}.in(dtype_), at);
    }
  }
  graph_.release(weights, at);
  return at;
}

OpIndex LayerBuilder::add_after(OpIndex after, const Op& op) {
  return after < 0 ? graph_.add(op) : graph_.add(op, {after});
}

/// Adds the cost at prefill of scores that fused attention does not return.
OpIndex LayerBuilder::score_prompt(OpIndex after, const PrefillState& moment) {
  const MethodNeeds needs = in_.method->needs();
  if (work_.rows == 0 || needs.prompt_scores == PromptScoreClass::kNone ||
      in_.stack->attention == AttentionExec::kEager) {
    return after;
  }
  const AttentionSpec& a = attention_;
  const std::int64_t s = moment.prompt;
  const std::int64_t key_elements = m_ * work_.prompt_key_heads * a.head_dim;
  const double keys = size(key_elements, dtype_);
  const double queries = size(m_ * a.n_heads * a.head_dim, dtype_);
  const double sums = static_cast<double>(in_.batch * rows_.stored_heads() * s) * kFp32Bytes;
  const Product heads = Product{}.times(in_.batch, "batch").times(a.n_heads, "query heads");
  const auto hold_once = [&](std::string_view name, std::int64_t rows, Dtype dtype, OpIndex at) {
    hold_during(name, Owner::kScores,
                Product{heads}.times(rows, "query rows").times(s, "tokens").in(dtype), at);
  };

  if (needs.prompt_scores == PromptScoreClass::kLastWindow) {
    const std::int64_t rows = std::min<std::int64_t>(needs.prompt_window, s);
    const std::int64_t n = in_.batch * a.n_heads * rows * s;
    const double matrix = size(n, Dtype::kFp32);
    const OpIndex at =
        add_after(after, {.name = "window scores",
                          .family = OpFamily::kScorePass,
                          .flops = FlopCount{2.0 * static_cast<double>(n) * a.head_dim},
                          .bytes_read = keys + matrix,
                          .bytes_written = matrix + sums,
                          .launches = 3,
                          .dtype = dtype_});
    hold_once("window scores", rows, Dtype::kFp32, at);
    return at;
  }

  if (needs.score_exec == ScoreExec::kFusedTwoPass) {
    const std::int64_t row_sums = in_.batch * a.n_heads * s;
    const OpIndex at = add_after(
        after,
        {.name = "column sums",
         .family = OpFamily::kScorePass,
         .flops = FlopCount{2.0 * static_cast<double>(in_.batch) * a.n_heads *
                            attention_kind(a).pairs(spec_, static_cast<double>(s)) * a.head_dim},
         .bytes_read = queries + keys + size(row_sums, Dtype::kFp32),
         .bytes_written = sums,
         .dtype = dtype_});
    hold_during("row sums", Owner::kScores, Product{heads}.times(s, "entries").in(Dtype::kFp32),
                at);
    return at;
  }

  std::int64_t rows = std::min(moment.score_rows, s);
  if (needs.score_exec == ScoreExec::kEagerChunked) rows = std::min(rows, kScoreChunk);
  const std::int64_t chunks = (s + rows - 1) / rows;
  const std::int64_t n = in_.batch * a.n_heads * s * s;
  // With fp32 logits the softmax is used directly: there is no cast copy.
  const bool casts = needs.fp32_softmax && dtype_ != Dtype::kFp32;
  const std::int32_t copies =
      needs.fp32_softmax && !casts ? std::max(1, needs.score_copies - 1) : needs.score_copies;
  // Each matrix is written once and read once.
  const double traffic =
      size(n, dtype_) * copies + (needs.fp32_softmax ? size(n, Dtype::kFp32) : 0.0);
  const OpIndex at =
      add_after(after, {.name = "attention scores",
                        .family = OpFamily::kScorePass,
                        .flops = FlopCount{2.0 * static_cast<double>(n) * a.head_dim},
                        .bytes_read = queries + keys * static_cast<double>(chunks) + traffic,
                        .bytes_written = traffic + sums,
                        .launches = static_cast<std::int32_t>(4 * chunks),
                        .dtype = dtype_});
  for (std::int32_t i = 0; i < copies; ++i) {
    hold_once(i == 0 ? "attention scores" : "copy of the attention scores", rows, dtype_, at);
  }
  if (needs.fp32_softmax) hold_once("fp32 softmax", rows, Dtype::kFp32, at);
  return at;
}

/// Adds the method's work on the prompt in addition to scores: factorise, quantise, evaluate
/// hidden states.
OpIndex LayerBuilder::prepare_method(OpIndex after, std::int64_t prompt) {
  if (work_.rows == 0) return after;
  const PrefillExtra extra = in_.method->prefill_extra(layer_, rows_.shape(), in_.kv_dtype, prompt);
  if (extra.launches == 0 && extra.flops == 0 && extra.read + extra.written == 0) return after;
  const auto batch = static_cast<double>(in_.batch);
  const OpIndex at = add_after(after, {.name = "method on the prompt",
                                       .family = OpFamily::kMethod,
                                       .flops = FlopCount{extra.flops * batch},
                                       .bytes_read = extra.read * batch,
                                       .bytes_written = extra.written * batch,
                                       .launches = std::max(extra.launches, 1),
                                       .dtype = dtype_});
  if (extra.transient > Bytes{}) {
    hold_during("method's scratch", Owner::kScores,
                Product{}.times(in_.batch, "batch").in_bytes(extra.transient), at);
  }
  return at;
}

OpGraph LayerBuilder::prefill(const PrefillState& moment) {
  const Prefilled before = prefill_whole(moment);
  return prefill_kept(before, moment.prompt, moment.kept);
}

/// Loads the rows of all tokens of the prompt from host memory. The next layer's rows are loaded
/// while this layer computes; then their keys are rotated to their positions, and both are written
/// into the cache.
void LayerBuilder::load_reused(std::int64_t prompt) {
  const Bytes stored = rows_.keys(prompt) + rows_.values(prompt);
  const auto bytes = static_cast<double>(stored.count());
  const OpIndex arrived = graph_.add({.name = "reused rows from host memory",
                                      .family = OpFamily::kHostCopy,
                                      .bytes_read = bytes,
                                      .stream = 1,
                                      .dtype = rows_.dtype()});
  (void)hold("buffer of reused rows", Owner::kScores, Product{}.in_bytes(stored), arrived);
  graph_.add({.name = "place reused rows",
              .family = OpFamily::kCacheWrite,
              .bytes_read = bytes,
              .bytes_written = bytes,
              .launches = 2,
              .dtype = rows_.dtype()});
}

OpIndex LayerBuilder::choose(Projected& qkv, std::int64_t chosen) {
  const std::int64_t tokens = tokens_;
  const auto keys = static_cast<double>(
      m_ * (work_.is_latent ? work_.cached_elements()
                            : std::int64_t{work_.prompt_key_heads} * attention_.head_dim));
  // Squared differences to the reused keys by token, the largest sums, in order.
  OpIndex at = graph_.add(
      {.name = "choice of computed tokens",
       .family = OpFamily::kMethod,
       .flops = FlopCount{3 * keys},
       .bytes_read = keys * bits_of(dtype_) / 8.0 + static_cast<double>(rows_.keys(tokens).count()),
       .bytes_written = size(m_, Dtype::kFp32),
       .launches = 5,
       .dtype = Dtype::kFp32},
      {qkv.op});
  std::int64_t width = llm_.d_model;  // of the tensors per token that continue
  for (const LayerMatrix& m : matrices_) {
    if (m.role == MatrixRole::kQuery || m.role == MatrixRole::kKey ||
        m.role == MatrixRole::kValue) {
      width += m.out;
    }
  }
  take(chosen);
  at = stream("gather computed tokens", OpFamily::kCompaction, m_ * width, m_ * width, at, 4);
  for (std::optional<std::size_t>* tensor : {&input_, &qkv.q, &qkv.k, &qkv.v}) {
    if (!*tensor) continue;
    const Bytes all = graph_.tensors()[**tensor].bytes;
    drop(*tensor, at);
    *tensor = hold("computed tokens", Owner::kActivations,
                   Product{}.in_bytes(Bytes{all.count() / tokens * chosen}), at);
  }
  qkv.op = at;
  return at;
}

LayerBuilder::Prefilled LayerBuilder::prefill_whole(const PrefillState& moment) {
  const bool is_static = is_preallocated(*in_.stack);
  const PromptPart part = prompt_part(in_, layer_);
  if (part.reused) load_reused(moment.prompt);
  Projected qkv = open();
  if (part.chooses) choose(qkv, part.computed_of(moment.prompt));
  // If prompts are split over GPUs, each caches the entries of all of their tokens.
  const std::int64_t cached = in_.stack->prefill_context > 1 ? moment.prompt : tokens_;
  for (const Op& op : gather_new_entries(
           *in_.stack, attention_, static_cast<double>(in_.batch * cached), dtype_, passes_)) {
    qkv.op = graph_.add(op, {qkv.op});
  }
  // The projected tensor is the cache itself, unless it is stored in another format.
  const bool direct = !part.reused && !is_static && rows_.plain() &&
                      bits_of(rows_.dtype()) == bits_of(dtype_) &&
                      rows_.stored_heads() == rows_.shape().n_kv_heads;
  CacheTensors cache;
  if (direct) {
    for (const CachePart& piece : parts()) {
      std::optional<std::size_t>& made = piece.tensor == &CacheTensors::keys ? qkv.k : qkv.v;
      // Values that equal the keys before rotation have no tensor.
      const OpIndex since = made ? graph_.tensors()[*made].first : qkv.op;
      drop(made, since - 1);  // instead held as cache, from the same operator
      made.reset();
      hold_cache(cache, piece, moment.prompt, since);
    }
  } else if (!parts().empty()) {
    const double made = size(in_.batch * cached * work_.cached_elements(), dtype_);
    const Bytes stored = rows_.keys(moment.prompt) + rows_.values(moment.prompt);
    const double share = static_cast<double>(cached) / static_cast<double>(moment.prompt);
    qkv.op = graph_.add({.name = "cache write",
                         .family = OpFamily::kCacheWrite,
                         .bytes_read = made,
                         .bytes_written = static_cast<double>(stored.count()) * share,
                         .launches = 2,
                         .dtype = dtype_},
                        {qkv.op});
    for (const CachePart& piece : parts()) {
      if (!is_static) hold_cache(cache, piece, moment.prompt, qkv.op);
    }
  }
  if (const double written = written_per_token(rows_.items()); written > 0) {
    const double bytes = written * static_cast<double>(in_.batch * cached);
    qkv.op = graph_.add({.name = "entry write",
                         .family = OpFamily::kCacheWrite,
                         .bytes_read = bytes,
                         .bytes_written = bytes,
                         .launches = passes_,
                         .dtype = dtype_},
                        {qkv.op});
  }
  if (!is_static) hold_other(cache, moment.prompt, std::max(qkv.op, 0));

  qkv.op = mix_prompt(qkv.op, moment.prompt);
  OpIndex at = attend_prompt(qkv, moment.prompt);
  at = score_prompt(at, moment);
  at = prepare_method(at, moment.prompt);
  release_inputs(qkv, at);
  return {.cache = cache, .at = project_out(qkv, at)};
}

OpGraph LayerBuilder::prefill_kept(Prefilled before, std::int64_t prompt, std::int64_t kept) {
  OpIndex at = before.at;
  std::int64_t entries = prompt;
  if (in_.method->prefill_peak() == PrefillPeak::kPerLayer && kept < prompt && !parts().empty()) {
    entries = kept;
    at = compact(before.cache, prompt, kept, at);
  }
  if (!is_preallocated(*in_.stack) && rows_.side(entries) > Bytes{}) {
    hold("side data", Owner::kSideData, rows_.side_size(entries), at + 1);
  }
  close(at);
  return std::move(graph_);
}

OpGraph LayerBuilder::around(std::span<const Op> middle, std::int64_t chosen, bool with_prompts) {
  held_ = m_;
  passes_ = 1;
  repeated_ = !with_prompts;
  Projected qkv = open();
  if (chosen < m_) {
    choose(qkv, chosen);
    held_ = m_;
    passes_ = 1;
  }
  OpIndex at = qkv.op;
  for (const Op& op : middle) {
    if (op.stream > 0) {
      graph_.add(op);
    } else {
      at = graph_.add(op, {at});
    }
  }
  if (has_attention()) {
    attended_ = activation(
        "attention output",
        rows().times(attention_.n_heads, "query heads").times(work_.prompt_value_width), at);
  }
  release_inputs(qkv, at);
  close(project_out(qkv, at));
  return std::move(graph_);
}

OpGraph LayerBuilder::finish(const PrefillState& moment) {
  const OpIndex at = prepare_method(score_prompt(-1, moment), moment.prompt);
  CacheTensors none;
  if (in_.method->prefill_peak() == PrefillPeak::kPerLayer && moment.kept < moment.prompt &&
      !parts().empty()) {
    compact(none, moment.prompt, moment.kept, at);
  }
  return std::move(graph_);
}

}  // namespace kvsim
