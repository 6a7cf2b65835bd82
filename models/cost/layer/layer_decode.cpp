#include <algorithm>

#include "models/cost/layer/dealt.hpp"
#include "models/cost/layer/layer_builder.hpp"
#include "models/cost/rates/kernel_use.hpp"
#include "models/units/check.hpp"

namespace kvsim {

/// Returns the kernel of a fused decode attention. Formats other than plain rows have no
/// measurements.
std::optional<KernelUse> LayerBuilder::decode_use(const DecodeState& moment,
                                                  const StepTraffic& traffic) const {
  if (!rows_.plain() || in_.stack->expands_kv_heads || in_.stack->attention_per_clock > 0) {
    return std::nullopt;
  }
  const AttentionSpec& a = attention_;
  const KernelFormat* format = shared_attention_format(dtype_, in_.kv_dtype);
  const auto batch = static_cast<double>(in_.batch);
  const std::int32_t ranks = work_.context_ranks;
  const double attended = static_cast<double>(moment.attended) / ranks;
  if (work_.is_latent) {
    return KernelUse{
        .call =
            MlaCall{
                .decode = true, .batch = batch, .seq_len = attended, .heads = a.n_heads * ranks},
        .format = format};
  }
  // Bytes that a method reads in addition to entries, or entry bytes that it skips, are converted
  // to entries.
  const std::int64_t rounded = work_.held_here(moment.attended) * ranks;
  const double whole = static_cast<double>(payload(kParts[0], rounded).count() +
                                           payload(kParts[1], rounded).count()) *
                       static_cast<double>(moment.attended) / static_cast<double>(rounded);
  const double share = whole > 0 ? traffic.attention_read * batch / whole : 1;
  if (has_lone_heads(*in_.stack, a, false, dtype_, in_.kv_dtype)) {
    return lone_heads_use(batch, attended * share, a.n_heads * ranks, rows_.stored_heads(),
                          a.head_dim, dtype_);
  }
  return KernelUse{.call = DecodeAttentionCall{.batch = batch,
                                               .kv_len = attended * share,
                                               .q_heads = a.n_heads * ranks,
                                               .kv_heads = rows_.stored_heads(),
                                               .head_dim = a.head_dim},
                   .format = format};
}

OpIndex LayerBuilder::attend_cache(const Projected& qkv, const DecodeState& moment,
                                   const StepTraffic& traffic) {
  if (!has_attention()) return qkv.op;
  if (work_.rows == 0) return attend_items(qkv, moment);
  const AttentionSpec& a = attention_;
  const auto batch = static_cast<double>(in_.batch);
  const auto attended = static_cast<double>(moment.attended);
  const std::int64_t q = m_ * a.n_heads * a.head_dim;
  const std::int64_t out = m_ * a.n_heads * a.v_head_dim;
  // Absorbed latent attention: every head scores and sums latent rows.
  const double score_width = work_.score_width;
  const double value_width = work_.value_width;
  const double per_width = 2 * batch * a.n_heads * attended;
  const std::int32_t ranks = work_.context_ranks;
  OpIndex at = qkv.op;
  for (const Op& op : gather_queries(work_, static_cast<double>(m_), a.n_heads, dtype_))
    at = graph_.add(op, {at});

  double cache_read = traffic.attention_read * batch;
  std::optional<std::size_t> expanded;
  const std::int32_t stored = rows_.stored_heads();
  if (in_.stack->expands_kv_heads && !work_.is_latent && a.n_heads > stored) {
    const std::int64_t n = in_.batch * moment.attended * a.n_heads * (a.head_dim + a.v_head_dim);
    at = graph_.add({.name = "repeat keys and values",
                     .family = OpFamily::kExpandCopy,
                     .bytes_read = cache_read,
                     .bytes_written = size(n, dtype_),
                     .launches = 2,
                     .dtype = dtype_},
                    {at});
    expanded = hold("repeated keys and values", Owner::kKvExpansion,
                    Product{}
                        .times(in_.batch, "batch")
                        .times(moment.attended, "entries")
                        .times(a.n_heads, "query heads")
                        .times(a.head_dim + a.v_head_dim)
                        .in(dtype_),
                    at);
    cache_read = size(n, dtype_);
  }
  const Product scores = score_rows(moment.attended, "entries");
  const auto score_row = [&] {
    const double read = traffic.score_row_read * batch;
    const double written = traffic.score_row_write * batch;
    if (read + written <= 0) return;
    at = graph_.add({.name = "score row",
                     .family = OpFamily::kScorePass,
                     .bytes_read = read,
                     .bytes_written = written,
                     .dtype = Dtype::kFp32},
                    {at});
    hold_during("score row", Owner::kScores, Product{scores}.in(Dtype::kFp32), at);
  };
  const bool splits = in_.stack->splits_keys && in_.stack->attention_per_clock == 0;
  const double blocks = splits ? 0.0 : batch * a.n_heads;
  if (in_.stack->attention == AttentionExec::kFused) {
    at = graph_.add({.name = "attention",
                     .family = OpFamily::kDecodeAttention,
                     .flops = FlopCount{per_width * (score_width + value_width)},
                     .bytes_read = cache_read + ranks * size(q, dtype_),
                     .bytes_written = ranks * size(out, dtype_),
                     .dtype = dtype_,
                     .blocks = blocks * ranks,
                     .kernel = decode_use(moment, traffic)},
                    {at});
    for (const Op& op : combine_outputs(work_, static_cast<double>(m_), a.n_heads, dtype_))
      at = graph_.add(op, {at});
    attended_ = activation("attention output", rows(out / m_, a.n_heads, "query heads"), at);
    drop(expanded, at);
    score_row();
    return at;
  }

  const double share = score_width / (score_width + value_width);
  const bool math = in_.stack->attention == AttentionExec::kMath;
  Dtype element = dtype_;
  std::optional<std::size_t> raised, scaled;
  if (math) {
    const std::int64_t held = expanded ? a.n_heads : stored;
    const std::int64_t n_elements = in_.batch * moment.attended * held * work_.row_width();
    const auto hold_wide = [&](std::string_view name, std::int64_t width) {
      Product size = Product{}.times(in_.batch, "batch").times(moment.attended, "entries");
      if (!work_.is_latent) size.times(held, expanded ? "query heads" : "heads");
      return hold(name, Owner::kKvExpansion, size.times(width).in(Dtype::kFp32), at);
    };
    if (bits_of(dtype_) < bits_of(Dtype::kFp32)) {
      element = Dtype::kFp32;
      at = graph_.add({.name = "rows in fp32",
                       .family = OpFamily::kElementwise,
                       .bytes_read = cache_read + size(q, dtype_),
                       .bytes_written = size(n_elements + q, element),
                       .launches = 3,
                       .dtype = element},
                      {at});
      cache_read = size(n_elements, element);
      raised = hold_wide("fp32 keys and values", work_.row_width());
    }
    const double keys = work_.is_latent ? cache_read : cache_read * share;
    const double scaled_keys = size(n_elements, element) * (work_.is_latent ? 1 : share);
    at = graph_.add({.name = "scale queries and keys",
                     .family = OpFamily::kElementwise,
                     .bytes_read = keys + size(q, element),
                     .bytes_written = scaled_keys + size(q, element),
                     .launches = 2,
                     .dtype = element},
                    {at});
    scaled = hold_wide("scaled keys", work_.is_latent ? work_.row_width() : work_.key_width);
  }
  const std::int64_t n = in_.batch * a.n_heads * moment.attended;
  at = graph_.add({.name = "attention scores",
                   .family = OpFamily::kDecodeAttention,
                   .flops = FlopCount{per_width * score_width},
                   .bytes_read = cache_read * share + size(q, element),
                   .bytes_written = size(n, element),
                   .dtype = element},
                  {at});
  drop(scaled, at);
  std::size_t weights = 0;
  at = eager_softmax(n, scores, 0, element, at, weights);
  at = graph_.add({.name = "attention values",
                   .family = OpFamily::kDecodeAttention,
                   .flops = FlopCount{per_width * value_width},
                   .bytes_read = cache_read * (1 - share) + size(n, element),
                   .bytes_written = size(out, dtype_),
                   .dtype = element},
                  {at});
  attended_ = activation("attention output", rows(out / m_, a.n_heads, "query heads"), at);
  graph_.release(weights, at);
  drop(raised, at);
  drop(expanded, at);
  if (math) score_row();
  return at;
}

/// Adds the copies of a method that keeps its rows in separate tensors.
OpIndex LayerBuilder::concat_apart(std::string_view name, double bytes, Dtype element,
                                   std::int32_t launches, OpIndex after) {
  if (bytes <= 0) return after;
  const OpIndex at = graph_.add({.name = name,
                                 .family = OpFamily::kConcatCopy,
                                 .bytes_read = bytes,
                                 .bytes_written = bytes,
                                 .launches = launches,
                                 .dtype = element},
                                {after});
  hold_during(name, Owner::kConcatCopy, Product{}.in_bytes(truncated<Bytes>(bytes)), at);
  return at;
}

OpGraph LayerBuilder::decode(const DecodeState& moment, bool whole) {
  repeated_ = true;
  const bool is_static = is_preallocated(*in_.stack);
  const auto batch = static_cast<double>(in_.batch);
  const bool has_rows = work_.rows > 0;
  const StepTraffic traffic =
      has_rows ? in_.method->decode_traffic(
                     layer_, rows_.shape(), in_.kv_dtype,
                     static_cast<double>(moment.attended) / work_.context_ranks, moment.evicts)
               : StepTraffic{};

  CacheTensors cache;
  std::optional<std::size_t> side;
  if (!is_static) {
    for (const CachePart& part : parts()) hold_cache(cache, part, moment.before, 0);
    hold_other(cache, moment.before, 0);
    if (rows_.side(moment.before + 1) > Bytes{}) {
      side = hold("side data", Owner::kSideData, rows_.side_size(moment.before), 0);
    }
  }
  Projected qkv = whole ? open() : Projected{.op = graph_.add({.name = "projections"}, {})};
  OpIndex at = qkv.op;

  // The new entry joins the cache. A stack that concatenates does so at every step: an entry
  // evicted from a full cache is removed from the longer copy after attention.
  const bool grows = moment.change != CacheChange::kOverwrite;
  // Formats other than plain rows are written in place, unless their code repacks.
  const bool holds_old = in_.stack->growth == CacheGrowth::kConcatAll;
  const bool by_copy = holds_old || in_.stack->growth == CacheGrowth::kConcatLayer;
  const bool concats = rows_.plain() && by_copy;
  // Keys that are rotated by their index must stay in order: kept entries are copied together.
  // Otherwise the new entry takes the slot of the evicted one.
  const bool keeps_copy = concats && !grows && moment.evicts && traffic.rotated > 0;
  if (concats) {
    for (const CachePart& part : parts()) {
      const Bytes longer = payload(part, moment.before + 1);
      KVSIM_CHECK(longer > payload(part, moment.before), "a longer copy of {} is not longer",
                  part.name);
      at = graph_.add({.name = part.concat,
                       .family = OpFamily::kConcatCopy,
                       .bytes_read = static_cast<double>(longer.count()),
                       .bytes_written = static_cast<double>(longer.count()),
                       .dtype = rows_.dtype()},
                      {at});
      replace(cache, part, part.concatenated, Owner::kConcatCopy, moment.before + 1, at);
      if (holds_old) {
        hold(part.older, Owner::kConcatCopy, part_size(part, moment.before), at + 1);
      }
    }
  }
  if (!parts().empty() && (!concats || !grows)) {
    // With distributed entries a rank writes one of every context_ranks entries.
    const double appended = traffic.append_write * batch / work_.context_ranks;
    at = graph_.add({.name = "cache append",
                     .family = OpFamily::kCacheWrite,
                     .bytes_read = appended,
                     .bytes_written = appended,
                     .dtype = dtype_},
                    {at});
    for (const CachePart& part : parts()) {
      if (!grows || is_static) break;
      drop(cache.*part.tensor, at - 1);
      hold_cache(cache, part, moment.before + 1, at);
    }
  }
  if (const double written = written_per_token(rows_.items()); written > 0) {
    at = graph_.add({.name = "entry append",
                     .family = OpFamily::kCacheWrite,
                     .bytes_read = written * batch,
                     .bytes_written = written * batch,
                     .dtype = dtype_},
                    {at});
  }
  if (cache.other) {
    drop(cache.other, std::max(at - 1, 0));
    hold_other(cache, moment.after, std::max(at, 1));
  }
  if (by_copy) {
    at = concat_apart("concat packed rows", traffic.repacked * batch, kPackedDtype, kPackedTensors,
                      at);
    at = concat_apart("concat waiting rows", traffic.recopied * batch, in_.kv_dtype, 2, at);
    if (traffic.scratch > 0) {
      hold_during("dequantised rows", Owner::kConcatCopy,
                  Product{}.in_bytes(truncated<Bytes>(traffic.scratch * batch)), at);
    }
  }
  std::optional<std::size_t> rotated;
  if (traffic.rotated > 0 && runs_by_operators(*in_.stack)) {
    // As for the rotation of new keys: each operator reads and writes the tensor about once.
    const std::int32_t passes = rotation_passes(*in_.stack);
    const double bytes = traffic.rotated * batch;
    const Product tensor = Product{}.in_bytes(truncated<Bytes>(bytes));
    at = graph_.add({.name = "rotate cached keys",
                     .family = OpFamily::kRope,
                     .bytes_read = bytes * passes,
                     .bytes_written = bytes * passes,
                     .launches = passes,
                     .dtype = dtype_},
                    {at});
    for (int half = 0; half < 2; ++half) {
      hold_during("rotated halves of cached keys", Owner::kActivations, tensor, at);
    }
    rotated = hold("rotated cached keys", Owner::kActivations, tensor, at);
  }
  at = mix_step(at, moment.after);
  qkv.op = at;
  at = attend_cache(qkv, moment, traffic);
  drop(rotated, at);
  release_inputs(qkv, at);

  // The method's own bookkeeping and moved entries.
  const double side_read = traffic.side_read * batch;
  const double side_written = traffic.side_write * batch;
  const std::int32_t operators = has_rows ? method_operators(*in_.method, *in_.stack) : 0;
  if (operators > 0 || side_read + side_written + traffic.extra_flops > 0) {
    at = graph_.add({.name = "method",
                     .family = OpFamily::kMethod,
                     .flops = FlopCount{traffic.extra_flops * batch},
                     .bytes_read = side_read,
                     .bytes_written = side_written,
                     .launches = operators,
                     .dtype = Dtype::kFp32},
                    {at});
  }
  if (in_.stack->masks_evicted && has_rows) {
    const PrefillExtra all =
        in_.method->masked_step(layer_, rows_.shape(), in_.kv_dtype, moment.attended);
    if (all.launches > 0) {
      at = graph_.add({.name = "method on the whole cache",
                       .family = OpFamily::kMethod,
                       .flops = FlopCount{all.flops * batch},
                       .bytes_read = all.read * batch,
                       .bytes_written = all.written * batch,
                       .launches = all.launches,
                       .dtype = dtype_},
                      {at});
      hold_during("method's scratch", Owner::kScores,
                  Product{}.times(in_.batch, "batch").in_bytes(all.transient), at);
    }
  }
  const double linked = (traffic.link_read + traffic.link_write) * batch;
  if (linked > 0) {
    at = graph_.add({.name = "host copy",
                     .family = OpFamily::kHostCopy,
                     .bytes_read = traffic.link_read * batch,
                     .bytes_written = traffic.link_write * batch,
                     .dtype = dtype_},
                    {at});
  }
  const double move_read = traffic.move_read * batch;
  const double move_written = traffic.move_write * batch;
  if (moment.change == CacheChange::kRewrite) {
    const double share = parts().empty() ? 0 : 1.0 / static_cast<double>(parts().size());
    for (const CachePart& part : parts()) {
      at = graph_.add({.name = part.gather,
                       .family = OpFamily::kCompaction,
                       .bytes_read = move_read * share,
                       .bytes_written = move_written * share,
                       .dtype = dtype_},
                      {at});
      if (!is_static) replace(cache, part, part.gathered, Owner::kCompaction, moment.after, at);
    }
  } else if (move_read + move_written > 0) {
    at = graph_.add({.name = "evict and merge",
                     .family = OpFamily::kCompaction,
                     .bytes_read = move_read,
                     .bytes_written = move_written,
                     .dtype = dtype_},
                    {at});
  }
  for (const CachePart& part : parts()) {
    if (!keeps_copy) break;
    const auto kept = static_cast<double>(payload(part, moment.after).count());
    at = graph_.add({.name = part.keep,
                     .family = OpFamily::kConcatCopy,
                     .bytes_read = kept,
                     .bytes_written = kept,
                     .dtype = rows_.dtype()},
                    {at});
    replace(cache, part, part.kept, Owner::kConcatCopy, moment.after, at);
  }
  if (concats && !grows && !keeps_copy) {  // the remainder of the longer copy
    for (const CachePart& part : parts()) {
      drop(cache.*part.tensor, at);
      hold_cache(cache, part, moment.after, at + 1);
    }
  }
  if (side) {
    graph_.release(*side, at);
    hold("side data", Owner::kSideData, rows_.side_size(moment.after), at + 1);
  }
  if (whole) close(project_out(qkv, at));
  return std::move(graph_);
}

}  // namespace kvsim
