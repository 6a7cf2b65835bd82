#include <cmath>

#include "models/cost/layer_builder.hpp"

namespace kvsim {
namespace {

/// Distinct experts that `tokens` tokens visit when each picks top_k of them evenly.
double expected_experts(const MlpSpec& mlp, std::int64_t tokens) {
  const double n = mlp.n_experts;
  return n * (1 - std::pow(1 - static_cast<double>(mlp.top_k) / n, static_cast<double>(tokens)));
}

}  // namespace

/// One gated or plain block of `width` columns over `rows` rows.
OpIndex LayerBuilder::dense_block(const BlockSpec& block, OpIndex after) {
  const std::int64_t d = llm_.d_model;
  const std::int64_t n = block.rows * block.width;
  const WeightPart part = block.experts ? WeightPart::kExperts : WeightPart::kLinear;
  const double copies = block.experts.value_or(1);
  if (mlp_.gated && in_.stack->fused_projections) {
    OpIndex at =
        gemm("gate and up projection", block.rows, d, 2 * block.width, after, part, copies);
    const std::size_t both = activation("gate and up", 2 * n, at);
    at = stream("gate times up", OpFamily::kElementwise, 2 * n, n, at);
    const std::size_t product = activation("gate times up", n, at);
    at = gemm("down projection", block.rows, block.width, d, at, part, copies);
    // The block's local names hold them until it returns.
    graph_.release(both, at);
    graph_.release(product, at);
    return at;
  }
  OpIndex at = gemm(mlp_.gated ? "gate projection" : "up projection", block.rows, d, block.width,
                    after, part, copies);
  const std::size_t gate = activation(mlp_.gated ? "gate" : "up", n, at);
  at = stream("activation function", OpFamily::kElementwise, n, n, at);
  graph_.release(gate, at);
  std::size_t product = activation("activated", n, at);
  if (mlp_.gated) {
    at = gemm("up projection", block.rows, d, block.width, at, part, copies);
    const std::size_t up = activation("up", n, at);
    at = stream("gate times up", OpFamily::kElementwise, 2 * n, n, at);
    graph_.release(product, at);
    graph_.release(up, at);
    product = activation("gate times up", n, at);
  }
  at = gemm("down projection", block.rows, block.width, d, at, part, copies);
  graph_.release(product, at);
  return at;
}

OpIndex LayerBuilder::feed_forward(OpIndex after) {
  const std::int64_t d = llm_.d_model;
  if (mlp_.n_experts == 0) {
    const OpIndex at = dense_block({.rows = m_, .width = mlp_.d_ff}, after);
    block_out_ = activation("feed-forward output", m_ * d, at);
    return at;
  }
  OpIndex at = gemm("router", m_, d, mlp_.n_experts, after, WeightPart::kPlain);
  std::optional<std::size_t> shared;
  if (mlp_.shared_d_ff > 0) {
    at = dense_block({.rows = m_, .width = mlp_.shared_d_ff}, at);
    shared = activation("shared expert output", m_ * d, at);
  }
  const std::int64_t routed = m_ * mlp_.top_k;
  at = dense_block({.rows = routed, .width = mlp_.d_ff, .experts = expected_experts(mlp_, held_)},
                   at);
  const std::size_t parts = activation("expert outputs", routed * d, at);
  at = stream("combine experts", OpFamily::kElementwise, routed * d, m_ * d, at);
  graph_.release(parts, at);
  drop(shared, at);
  block_out_ = activation("feed-forward output", m_ * d, at);
  return at;
}

}  // namespace kvsim
