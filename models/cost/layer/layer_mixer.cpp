// Operators of layers with more than rows of keys and values: recurrent states, indexes, compressed
// entries.

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "models/cost/layer/dealt.hpp"
#include "models/cost/layer/layer_builder.hpp"
#include "models/cost/layer/split_prompt.hpp"
#include "models/cost/rates/kernel_use.hpp"

namespace kvsim {
namespace {

Op& operator+=(Op& sum, const Op& one) {
  sum.flops += one.flops;
  sum.bytes_read += one.bytes_read;
  sum.bytes_written += one.bytes_written;
  sum.launches += one.launches;
  return sum;
}

/// A prompt's pieces as equal pieces, and their mean.
struct EqualPieces {
  double count = 1;
  NewTokens mean{};
};
EqualPieces equal_pieces(std::int64_t prompt, std::int64_t piece) {
  const double count = std::ceil(static_cast<double>(prompt) / static_cast<double>(piece));
  const double tokens = static_cast<double>(prompt) / count;
  return {.count = count,
          .mean = {.tokens = tokens, .before = tokens * (count - 1) / 2, .decodes = false}};
}

}  // namespace

Op mixer_operator(const MixerOp& one, Dtype dtype, double sequences) {
  const double element = bits_of(dtype) / 8.0;
  return {.name = one.name,
          .family = one.kind == MixerOpKind::kRecurrence ? OpFamily::kRecurrence : OpFamily::kIndex,
          .flops = FlopCount{one.flops * sequences},
          .bytes_read = (one.cache_read + one.read * element) * sequences,
          .bytes_written = (one.cache_written + one.written * element) * sequences,
          .dtype = one.is_8_bit ? Dtype::kFp8E4m3 : dtype};
}

void add_mixer_operators(const LayerSpec& layer, const NewTokens& span, Dtype dtype,
                         double sequences, std::vector<Op>& out) {
  std::size_t i = 0;
  for (const MixerOp& one : mixer_operators(layer, span)) {
    Op op = mixer_operator(one, dtype, sequences);
    if (i == out.size()) {
      op.kernel = mixer_use(layer, one, sequences, span);
      out.push_back(op);
    } else {
      out[i] += op;
    }
    ++i;
  }
}

void use_mean_kernels(const LayerSpec& layer, const NewTokens& mean, double sequences, double times,
                      std::vector<Op>& ops) {
  std::size_t i = 0;
  for (const MixerOp& one : mixer_operators(layer, mean)) {
    std::optional<KernelUse>& kernel = ops[i].kernel;
    kernel = mixer_use(layer, one, sequences, mean);
    if (kernel) kernel->times = times;
    ++i;
  }
}

bool scans_copies(const Stack& stack, const LayerSpec& layer) {
  const StateKind kind = layer.state.kind;
  return stack.rescans_states && (kind == StateKind::kGatedDelta || kind == StateKind::kKimiDelta);
}

bool scans_decodes(const Stack& stack, const LayerSpec& layer) {
  return scans_copies(stack, layer) &&
         (stack.rescans_decodes || layer.state.kind == StateKind::kKimiDelta);
}

Op state_copies(const LayerSpec& layer, double sequences) {
  const StateSpec& s = layer.state;
  const double matrices = double{1} * s.n_heads * s.key_dim * s.value_dim;
  const double bytes = 2 * sequences * matrices * bits_of(s.dtype) / 8.0;
  return {.name = "copies of states",
          .family = OpFamily::kElementwise,
          .bytes_read = bytes,
          .bytes_written = bytes,
          .launches = 2,
          .dtype = s.dtype};
}

double entry_bytes(std::span<const CacheItem> items) {
  for (const CacheItem& item : items) {
    if (item.role == CacheRole::kEntries) return item.entry_bytes;
  }
  return 0;
}

double entries_held(std::span<const CacheItem> items, std::int64_t tokens) {
  double sum = 0;
  for (const CacheItem& item : items) {
    if (item.role == CacheRole::kEntries) sum += item.held(tokens);
  }
  return sum;
}

OpIndex LayerBuilder::project_sides(OpIndex after) {
  OpIndex at = after;
  // Matrices of a state follow attention's output projection.
  const std::size_t first = has_attention() ? matrix_of(MatrixRole::kOutput) + 1 : 0;
  for (std::size_t i = first; i < matrices_.size();) {
    const LayerMatrix& m = matrices_[i];
    if (m.role == MatrixRole::kOutput) break;
    if (m.role == MatrixRole::kConvolution) {
      const double bytes = size(m_ * m.out, dtype_);
      const bool timed = in_.stack->kernels.contains(name_of(KernelOp::kConvolution));
      at = graph_.add({.name = "convolution",
                       .family = OpFamily::kElementwise,
                       .bytes_read = bytes,
                       .bytes_written = bytes,
                       .launches = passes_,
                       .dtype = dtype_,
                       .kernel = timed ? convolution_use(m_, m.out, passes_)
                                       : stream_use(OpFamily::kElementwise, m_, bytes, bytes, 1,
                                                    dtype_, passes_)},
                      {at});
      sides_.push_back(activation(m.result, rows().times(m.out), at));
      ++i;
      continue;
    }
    // Matrices with the same input and format form one product if the stack fuses projections.
    std::int64_t width = m.out;
    std::size_t next = i + 1;
    const auto joins = [&](const LayerMatrix& other) {
      return in_.stack->fused_projections && other.role == m.role && other.in == m.in &&
             other.part == m.part && spec_.formats[next] == spec_.formats[i];
    };
    for (; next < matrices_.size() && joins(matrices_[next]); ++next) width += matrices_[next].out;
    at = gemm(m.operation, m_, m.in, width, at, place_of(i));
    sides_.push_back(activation(m.result, rows().times(width), at));
    i = next;
  }
  return at;
}

OpIndex LayerBuilder::mix_step(OpIndex after, std::int64_t tokens) {
  std::vector<Op> ops;
  const NewTokens span{.tokens = 1, .before = static_cast<double>(tokens - 1)};
  add_mixer_operators(spec_, span, dtype_, static_cast<double>(in_.batch), ops);
  OpIndex at = after;
  for (const Op& op : ops) at = graph_.add(op, {at});
  return at;
}

OpIndex LayerBuilder::mix_prompt(OpIndex after, std::int64_t prompt) {
  std::vector<Op> ops;
  const std::int32_t ranks = in_.stack->prefill_context;
  const std::int64_t piece = piece_of(prompt);
  for (std::int64_t done = 0; done < prompt; done += piece) {
    const NewTokens span{.tokens = static_cast<double>(std::min(piece, prompt - done)),
                         .before = static_cast<double>(done),
                         .decodes = false};
    add_mixer_operators(spec_, split_span(span, ranks), dtype_, static_cast<double>(in_.batch),
                        ops);
  }
  EqualPieces equal = equal_pieces(prompt, piece);
  equal.mean = split_span(equal.mean, ranks);
  const auto batch = static_cast<double>(in_.batch);
  if (equal.count > 1) use_mean_kernels(spec_, equal.mean, batch, equal.count, ops);
  if (scans_copies(*in_.stack, spec_)) ops.push_back(state_copies(spec_, batch * equal.count));
  OpIndex at = after;
  for (const Op& op : ops) at = graph_.add(op, {at});
  return at;
}

/// One fused operator on all stacks.
OpIndex LayerBuilder::attend_items(const Projected& qkv, const DecodeState& moment) {
  const auto batch = static_cast<double>(in_.batch);
  const std::int64_t out = m_ * attention_.n_heads * work_.prompt_value_width;
  const std::int32_t ranks = work_.context_ranks;
  const double queries = ranks * size(m_ * attention_.n_heads * work_.prompt_score_width, dtype_);
  OpIndex at = qkv.op;
  for (const Op& op : gather_queries(work_, static_cast<double>(m_), attention_.n_heads, dtype_)) {
    at = graph_.add(op, {at});
  }
  at = graph_.add(
      {.name = "attention to chosen entries",
       .family = OpFamily::kSparseAttention,
       .flops = FlopCount{2 * batch * attention_.n_heads * static_cast<double>(moment.attended) *
                          (work_.score_width + work_.value_width)},
       .bytes_read =
           batch * static_cast<double>(moment.attended) * entry_bytes(rows_.items()) + queries,
       .bytes_written = ranks * size(out, dtype_),
       .dtype = dtype_,
       .kernel = sparse_decode_use(attention_, batch, 1, static_cast<double>(moment.attended),
                                   dtype_, in_.kv_dtype)},
      {at});
  for (const Op& op : combine_outputs(work_, static_cast<double>(m_), attention_.n_heads, dtype_)) {
    at = graph_.add(op, {at});
  }
  attended_ = activation("attention output", rows(out / m_, attention_.n_heads, "query heads"), at);
  return at;
}

OpIndex LayerBuilder::attend_prompt_items(const Projected& qkv, std::int64_t prompt) {
  const auto batch = static_cast<double>(in_.batch);
  const std::int64_t out = m_ * attention_.n_heads * work_.prompt_value_width;
  const std::int32_t parts = in_.stack->prefill_context;
  const std::int64_t piece = piece_of(prompt);
  double cached = 0;  // bytes of earlier pieces that pieces read
  for (std::int64_t done = piece; done < prompt; done += piece) {
    cached += entries_held(rows_.items(), done);
  }
  const EqualPieces equal = equal_pieces(prompt, piece);
  std::optional<KernelUse> use = sparse_prompt_use(
      *in_.stack, attention_, split_span(equal.mean, parts), batch, dtype_, in_.kv_dtype);
  if (use) use->times = equal.count;
  const std::int32_t ranks = work_.context_ranks;
  OpIndex at = qkv.op;
  const auto rows_here = static_cast<double>(m_);
  for (const Op& op : gather_queries(work_, rows_here, attention_.n_heads, dtype_, passes_)) {
    at = graph_.add(op, {at});
  }
  at = graph_.add(
      {.name = "attention to chosen entries",
       .family = OpFamily::kSparseAttention,
       .flops = FlopCount{2 * batch * attention_.n_heads *
                          attention_kind(attention_).pairs(spec_, static_cast<double>(prompt)) /
                          parts * (work_.prompt_score_width + work_.prompt_value_width)},
       .bytes_read = ranks * size(m_ * attention_.n_heads * work_.prompt_score_width, dtype_) +
                     size(in_.batch * prompt * work_.prompt_elements, dtype_) + batch * cached,
       .bytes_written = ranks * size(out, dtype_),
       .launches = passes_,
       .dtype = dtype_,
       .kernel = std::move(use)},
      {at});
  for (const Op& op : combine_outputs(work_, rows_here, attention_.n_heads, dtype_, passes_)) {
    at = graph_.add(op, {at});
  }
  attended_ = activation("attention output", rows(out / m_, attention_.n_heads, "query heads"), at);
  return at;
}

}  // namespace kvsim
