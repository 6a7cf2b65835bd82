#include "models/cost/kernels/work.hpp"

#include <algorithm>
#include <cmath>

namespace kvsim {
namespace {

KernelWork work(const DecodeAttentionCall& c, const KernelFormat& f) {
  const double entries = c.batch * c.kv_len;
  const double q = c.batch * c.q_heads * c.head_dim;
  return {
      .flops = 4 * entries * c.q_heads * c.head_dim,
      .bytes = 2 * entries * c.kv_heads * c.head_dim * f.stored_bytes + 2 * q * f.operand_bytes};
}

KernelWork work(const PrefillAttentionCall& c, const KernelFormat& f) {
  // Query i of n attends to prefix + i keys.
  const double pairs = c.new_tokens * (c.prefix + (c.new_tokens + 1) / 2);
  const double q = c.batch * c.new_tokens * c.q_heads * c.head_dim;
  const double kv = c.batch * (c.prefix + c.new_tokens) * c.kv_heads * c.head_dim;
  return {.flops = 4 * c.batch * pairs * c.q_heads * c.head_dim,
          .bytes = 2 * q * f.operand_bytes + 2 * kv * f.stored_bytes};
}

KernelWork work(const MlaCall& c, const KernelFormat& f) {
  // DeepSeek-V2/V3: latent rank 512, rotary part 64, heads 128 + 64 wide with values of 128.
  constexpr double kRank = 512, kRope = 64, kHead = 128;
  const double rows = c.batch * c.seq_len;
  if (c.decode) {
    const double q = c.batch * c.heads * (2 * kRank + kRope);
    return {.flops = 2 * rows * c.heads * (2 * kRank + kRope),
            .bytes = rows * (kRank + kRope) * f.stored_bytes + q * f.operand_bytes};
  }
  const double pairs = rows * (c.prefix + (c.seq_len + 1) / 2);
  const double prefix = c.batch * c.prefix;
  return {.flops = 2 * pairs * c.heads * (2 * kHead + kRope),
          .bytes = (rows * (2 * (kHead + kRope) + 2 * kHead) + prefix * (2 * kHead + kRope)) *
                   c.heads * f.operand_bytes};
}

KernelWork work(const GemmCall& c, const KernelFormat& f) {
  return {.flops = 2 * c.m * c.n * c.k,
          .bytes = c.n * c.k * f.stored_bytes + c.m * (c.k + c.n) * f.operand_bytes};
}

KernelWork work(const GroupedGemmCall& c, const KernelFormat& f) {
  return {.flops = 2 * c.rows * c.n * c.k,
          .bytes = c.experts * c.n * c.k * f.stored_bytes + c.rows * (c.k + c.n) * f.operand_bytes};
}

KernelWork work(const MoeCall& c, const KernelFormat& f) {
  const double experts = experts_visited(c.tokens, c.top_k, c.experts) / c.ep;
  const double rows = c.tokens * c.top_k / c.ep;
  const double inter = c.inter / c.tp;
  // Gate, up and down.
  return {.flops = 6 * rows * c.hidden * inter,
          .bytes = 3 * experts * c.hidden * inter * f.stored_bytes +
                   rows * (2 * c.hidden + 4 * inter) * f.operand_bytes};
}

KernelWork work(const ElementwiseCall& c, const KernelFormat&) {
  return {.bytes = c.bytes_read + c.bytes_written};
}
KernelWork work(const CollectiveCall& c, const KernelFormat&) { return {.bytes = c.bytes}; }
KernelWork work(const CopyCall& c, const KernelFormat&) {
  return {.bytes = c.kind == CopyKind::kDevice ? 2 * c.bytes : c.bytes};
}

KernelWork work(const RecurrenceCall& c, const KernelFormat& f) {
  const double heads = c.batch * c.heads;
  const double state = c.key_dim * c.value_dim;
  const double rows = c.tokens * (2 * c.key_dim + 2 * c.value_dim) * f.operand_bytes;
  // Delta rules: S k, the decay, the rank-one update and S q. A scan computes the last three as
  // products. Mamba 2 does not have S k, and its scan has about as many operations within chunks.
  return {.flops = heads * c.tokens * (c.decode ? 7 : 6) * state,
          .bytes = heads * (2 * state * c.state_bytes + rows)};
}

KernelWork work(const ConvolutionCall& c, const KernelFormat& f) {
  return {.bytes = 2 * c.tokens * c.channels * f.operand_bytes};
}

KernelWork work(const IndexScoresCall& c, const KernelFormat&) {
  const double scores = c.batch * c.queries * c.keys;
  constexpr double kScale = 4, kScore = 4;  // bytes of a key's scale, and of an fp32 score
  // A sequence's queries share its keys. On average a prompt's queries see half of the new ones.
  const double held = c.decode ? c.keys : c.keys + (c.queries - 1) / 2;
  return {.flops = 2 * scores * c.heads * c.head_dim,
          .bytes = c.batch * (held * (c.head_dim + kScale) + c.queries * c.heads * c.head_dim) +
                   scores * kScore};
}

KernelWork work(const IndexChoiceCall& c, const KernelFormat&) {
  constexpr double kWord = 4;  // bytes of a score and of a position
  return {.bytes = c.rows * (c.length + std::min(c.chosen, c.length)) * kWord};
}

KernelWork work(const SparseAttentionCall& c, const KernelFormat& f) {
  constexpr double kRank = 512, kRope = 64;
  const double queries = c.batch * c.queries;
  return {.flops = 2 * queries * c.heads * c.chosen * (2 * kRank + kRope),
          .bytes = queries * c.chosen * (kRank + kRope) * f.stored_bytes +
                   queries * c.heads * (2 * kRank + kRope) * f.operand_bytes};
}

}  // namespace

double experts_visited(double tokens, double top_k, double experts) {
  return experts * (1 - std::pow(1 - top_k / experts, tokens));
}

KernelWork work_of(const KernelCall& call, const KernelFormat& format) {
  return std::visit([&](const auto& c) { return work(c, format); }, call);
}

}  // namespace kvsim
