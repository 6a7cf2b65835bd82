#include <algorithm>
#include <cmath>

#include "models/cost/layer/collectives.hpp"
#include "models/cost/layer/layer_builder.hpp"
#include "models/cost/rates/kernel_use.hpp"

namespace kvsim {
namespace {

/// Returns the expected number of a GPU's experts that `tokens` tokens visit if each token chooses
/// top_k of all experts uniformly.
double expected_experts(const MlpSpec& mlp, std::int64_t held, double tokens) {
  return static_cast<double>(held) *
         (1 - std::pow(1 - static_cast<double>(mlp.top_k) / mlp.n_experts, tokens));
}

constexpr std::string_view kCombine = "expert combine";

/// Returns the input and output columns of routed experts.
std::int64_t expert_columns(const Llm& llm, const MlpSpec& mlp) {
  return mlp.latent_dim > 0 ? mlp.latent_dim : llm.d_model;
}

}  // namespace

/// Adds a gated or plain block of `width` columns over `rows` rows.
OpIndex LayerBuilder::dense_block(const BlockSpec& block, OpIndex after) {
  const std::int64_t d = block.model;
  const std::int64_t n = block.rows * block.width;
  const Product one = block_rows(block.rows, block.width);
  const MatrixPlace part{block.experts ? WeightPart::kExperts : WeightPart::kLinear, block.format};
  const double copies = block.experts.value_or(1);
  if (mlp_.gated && in_.stack->fused_projections) {
    OpIndex at =
        gemm("gate and up projection", block.rows, d, 2 * block.width, after, part, copies);
    const std::size_t both = activation("gate and up", block_rows(block.rows, 2 * block.width), at);
    at = stream("gate times up", OpFamily::kElementwise, 2 * n, n, at);
    const std::size_t product = activation("gate times up", one, at);
    at = gemm("down projection", block.rows, block.width, d, at, part, copies);
    // Local variables of the block's forward hold them until it returns.
    graph_.release(both, at);
    graph_.release(product, at);
    return at;
  }
  OpIndex at = gemm(mlp_.gated ? "gate projection" : "up projection", block.rows, d, block.width,
                    after, part, copies);
  const std::size_t gate = activation(mlp_.gated ? "gate" : "up", one, at);
  at = stream("activation function", OpFamily::kElementwise, n, n, at);
  graph_.release(gate, at);
  std::size_t product = activation("activated", one, at);
  if (mlp_.gated) {
    at = gemm("up projection", block.rows, d, block.width, at, part, copies);
    const std::size_t up = activation("up", one, at);
    at = stream("gate times up", OpFamily::kElementwise, 2 * n, n, at);
    graph_.release(product, at);
    graph_.release(up, at);
    product = activation("gate times up", one, at);
  }
  at = gemm("down projection", block.rows, block.width, d, at, part, copies);
  graph_.release(product, at);
  return at;
}

std::optional<KernelUse> LayerBuilder::routed_use() {
  std::optional<KernelUse> use = routed_;
  if (routed_) routed_->times = 0;
  return use;
}

OpIndex LayerBuilder::exchange(std::string_view name, const ExpertShare& share, OpIndex after) {
  const std::int32_t parts = in_.stack->prefill_context;
  if (parts > 1) {
    // Tokens replicated on all groups are not sent, and their sums are all-reduced.
    const bool combines = name == kCombine;
    if (repeated_ && !combines) return after;
    const CollectiveKind kind = !combines   ? CollectiveKind::kAllGather
                                : repeated_ ? CollectiveKind::kAllReduce
                                            : CollectiveKind::kReduceScatter;
    const double bytes = size(m_ * expert_columns(llm_, mlp_), dtype_) * (repeated_ ? 1 : parts);
    return graph_.add(collective_op(name, kind, bytes, parts, dtype_, passes_), {after});
  }
  if (in_.stack->expert_parallel == 1) return after;
  const double vector = size(expert_columns(llm_, mlp_), dtype_);
  return graph_.add({.name = name,
                     .family = OpFamily::kCollective,
                     .bytes_read = share.exchanged * vector,
                     .launches = passes_,
                     .dtype = dtype_,
                     .exchange = true},
                    {after});
}

OpIndex LayerBuilder::feed_forward(OpIndex after) {
  const std::int64_t d = llm_.d_model;
  if (mlp_.n_experts == 0) {
    const OpIndex at =
        dense_block({.rows = m_, .width = mlp_.d_ff, .model = d, .format = mlp_.format}, after);
    block_out_ = activation("feed-forward output", rows().times(d), at);
    return at;
  }
  OpIndex at = gemm("router", m_, d, mlp_.n_experts, after, WeightPart::kPlain);
  std::optional<std::size_t> shared;
  if (mlp_.shared_d_ff > 0) {
    at = dense_block(
        {.rows = m_, .width = mlp_.shared_d_ff, .model = d, .format = mlp_.shared_format}, at);
    shared = activation("shared expert output", rows().times(d), at);
  }
  const std::int64_t columns = expert_columns(llm_, mlp_);
  std::optional<std::size_t> latents;
  if (mlp_.latent_dim > 0) {
    at = gemm("projection to the experts' width", m_, d, columns, at,
              {WeightPart::kLinear, mlp_.latent_format});
    latents = activation("expert inputs", rows().times(columns), at);
  }
  const ExpertShare share = expert_share(in_, mlp_, m_, repeated_);
  const double visited =
      expected_experts(mlp_, share.experts, expert_share(in_, mlp_, held_, repeated_).tokens);
  at = exchange("expert dispatch", share, at);
  if (mlp_.gated && in_.stack->kernels.contains(name_of(KernelOp::kMoe))) {
    routed_ = moe_use(in_, mlp_, share, passes_);
  }
  at = dense_block({.rows = share.rows,
                    .width = share.width,
                    .model = columns,
                    .experts = visited,
                    .format = mlp_.format},
                   at);
  const std::size_t parts = activation("expert outputs", block_rows(share.rows, columns), at);
  at = exchange(kCombine, share, at);
  // For tokens replicated on all groups, each sums the outputs of the experts it holds.
  const std::int64_t outputs = repeated_ && in_.stack->prefill_context > 1
                                   ? std::min(share.rows, share.own * mlp_.top_k)
                                   : share.own * mlp_.top_k;
  at =
      stream("combine experts", OpFamily::kElementwise, outputs * columns, share.own * columns, at);
  routed_.reset();
  if (latents) {
    at = gemm("projection from the experts' width", m_, columns, d, at,
              {WeightPart::kLinear, mlp_.latent_format});
    graph_.release(*latents, at);
  }
  graph_.release(parts, at);
  drop(shared, at);
  block_out_ = activation("feed-forward output", rows().times(d), at);
  return at;
}

}  // namespace kvsim
