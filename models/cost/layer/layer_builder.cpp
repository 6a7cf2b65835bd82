#include "models/cost/layer/layer_builder.hpp"

#include "models/cost/rates/kernel_use.hpp"

namespace kvsim {

double LayerBuilder::size(std::int64_t elements, Dtype dtype) {
  return static_cast<double>(bytes_of(elements, dtype).count());
}

LayerBuilder::LayerBuilder(const CostInput& in, std::int32_t layer, std::int64_t tokens)
    : in_{in},
      llm_{*in.llm},
      attention_{in.llm->layers[static_cast<std::size_t>(layer)].attention},
      mlp_{in.llm->layers[static_cast<std::size_t>(layer)].mlp},
      rows_{in, layer},
      layer_{layer},
      tokens_{tokens},
      m_{in.batch * tokens},
      held_{rows_at_once(in, tokens)},
      passes_{static_cast<std::int32_t>((m_ + held_ - 1) / held_)},
      dtype_{activation_dtype(in.weight_dtype)} {}

std::size_t LayerBuilder::activation(std::string_view name, std::int64_t elements, OpIndex first) {
  return graph_.hold(name, Owner::kActivations,
                     allocator_rounded(in_, bytes_of(elements / m_ * held_, dtype_)), first);
}

OpIndex LayerBuilder::eager_softmax(std::int64_t n, double mask, Dtype element, OpIndex after,
                                    std::size_t& weights) {
  const auto matrix = [&](std::string_view name, Dtype dtype, OpIndex first) {
    return graph_.hold(name, Owner::kScores,
                       allocator_rounded(in_, bytes_of(n / m_ * held_, dtype)), first);
  };
  std::size_t logits = matrix("attention scores", element, after);
  const std::int32_t passes = in_.stack->score_passes;
  if (passes > 0) {
    after = graph_.add({.name = "scale and mask",
                        .family = OpFamily::kElementwise,
                        .bytes_read = size(n, element) * passes + mask,
                        .bytes_written = size(n, element) * passes,
                        .launches = passes,
                        .dtype = element},
                       {after});
    graph_.release(logits, after);
    logits = matrix("masked attention scores", element, after);
    mask = 0;
  }
  if (!in_.stack->softmax_fp32) {
    const OpIndex softmax = graph_.add({.name = "softmax",
                                        .family = OpFamily::kElementwise,
                                        .bytes_read = size(n, element) + mask,
                                        .bytes_written = size(n, element),
                                        .launches = passes > 0 ? 1 : 2,
                                        .dtype = Dtype::kFp32},
                                       {after});
    weights = matrix("attention probabilities", element, softmax);
    graph_.release(logits, softmax);
    return softmax;
  }
  OpIndex at = graph_.add({.name = "softmax",
                           .family = OpFamily::kElementwise,
                           .bytes_read = size(n, element) + mask,
                           .bytes_written = size(n, Dtype::kFp32),
                           .launches = passes > 0 ? 1 : 2,
                           .dtype = Dtype::kFp32},
                          {after});
  weights = matrix("fp32 softmax", Dtype::kFp32, at);
  if (element != Dtype::kFp32) {
    at = graph_.add({.name = "softmax cast",
                     .family = OpFamily::kElementwise,
                     .bytes_read = size(n, Dtype::kFp32),
                     .bytes_written = size(n, element),
                     .dtype = Dtype::kFp32},
                    {at});
    graph_.release(weights, at);
    weights = matrix("attention probabilities", element, at);
  }
  graph_.release(logits, at);
  return at;
}

const std::array<LayerBuilder::CachePart, 2> LayerBuilder::kParts{
    CachePart{.tensor = &CacheTensors::keys,
              .payload = &CacheRows::keys,
              .name = "keys",
              .concat = "concat keys",
              .concatenated = "longer copy of the keys",
              .older = "old keys",
              .keep = "keep keys",
              .kept = "kept keys",
              .gather = "gather keys",
              .gathered = "gathered keys",
              .compact = "compact keys",
              .compacted = "compacted keys"},
    CachePart{.tensor = &CacheTensors::values,
              .payload = &CacheRows::values,
              .name = "values",
              .concat = "concat values",
              .concatenated = "longer copy of the values",
              .older = "old values",
              .keep = "keep values",
              .kept = "kept values",
              .gather = "gather values",
              .gathered = "gathered values",
              .compact = "compact values",
              .compacted = "compacted values"}};

std::span<const LayerBuilder::CachePart> LayerBuilder::parts() const {
  return std::span{kParts}.first(attention_.is_latent() ? 1 : 2);
}

Bytes LayerBuilder::payload(const CachePart& part, std::int64_t entries) const {
  return (rows_.*part.payload)(entries);
}

void LayerBuilder::hold_cache(CacheTensors& cache, const CachePart& part, std::int64_t entries,
                              OpIndex first) {
  cache.*part.tensor = graph_.hold(part.name, Owner::kKvCache,
                                   allocator_rounded(in_, payload(part, entries)), first);
}

void LayerBuilder::drop(const std::optional<std::size_t>& tensor, OpIndex last) {
  if (tensor) graph_.release(*tensor, last);
}

void LayerBuilder::replace(CacheTensors& cache, const CachePart& part, std::string_view copy,
                           Owner while_copied, std::int64_t entries, OpIndex at) {
  drop(cache.*part.tensor, at);
  graph_.release(
      graph_.hold(copy, while_copied, allocator_rounded(in_, payload(part, entries)), at), at);
  hold_cache(cache, part, entries, at + 1);
}

OpIndex LayerBuilder::gemm(std::string_view name, std::int64_t rows, std::int64_t in,
                           std::int64_t out, OpIndex after, const MatrixPlace& place,
                           double copies) {
  const Dtype product = product_dtype(llm_, in_.weights(), place);
  const double weights =
      static_cast<double>(matrix_bytes(llm_, in_.weights(), place, in, out).count()) * copies *
      passes_;
  return graph_.add(
      {.name = name,
       .family = OpFamily::kGemm,
       .flops = FlopCount{2.0 * static_cast<double>(rows) * static_cast<double>(in) *
                          static_cast<double>(out)},
       .bytes_read = weights + size(rows * in, dtype_),
       .bytes_written = size(rows * out, dtype_),
       .launches = passes_,
       .dtype = product,
       .kernel = place.part == WeightPart::kExperts
                     ? routed_use()
                     : std::optional{gemm_use(rows, out, in, weights / passes_, product, passes_,
                                              is_block_scaled(llm_, in_.weights(), place))}},
      {after});
}

OpIndex LayerBuilder::all_reduce(std::int64_t elements, OpIndex after) {
  if (in_.tensor_parallel == 1) return after;
  // Each GPU sends and receives its share of the others' sums twice: reduce-scatter, all-gather.
  const double ranks = in_.tensor_parallel;
  return graph_.add(
      {.name = "all-reduce",
       .family = OpFamily::kCollective,
       .bytes_read = size(elements, dtype_) * 2 * (ranks - 1) / ranks,
       .launches = passes_,
       .dtype = dtype_,
       .kernel = all_reduce_use(size(elements, dtype_), in_.tensor_parallel, passes_)},
      {after});
}

OpIndex LayerBuilder::stream(std::string_view name, OpFamily family, std::int64_t read,
                             std::int64_t written, OpIndex after, std::int32_t launches) {
  return graph_.add(
      {.name = name,
       .family = family,
       .bytes_read = size(read, dtype_),
       .bytes_written = size(written, dtype_),
       .launches = launches * passes_,
       .dtype = dtype_,
       .kernel = routed_ ? routed_use()
                         : stream_use(family, m_, size(read, dtype_), size(written, dtype_),
                                      launches, dtype_, passes_)},
      {after});
}

/// An RMSNorm. Unfused, its operators pass fp32 intermediates through memory, two alive at once.
OpIndex LayerBuilder::norm(std::string_view name, OpIndex after) {
  const std::int64_t n = m_ * llm_.d_model;
  const std::int32_t launches = in_.stack->norm_launches;
  const double between = static_cast<double>(n) * kFp32Bytes * (launches - 1);
  const Op op{.name = name,
              .family = OpFamily::kNorm,
              .bytes_read = size(n, dtype_) + between,
              .bytes_written = size(n, dtype_) + between,
              .launches = launches * passes_,
              .dtype = Dtype::kFp32,
              .kernel = stream_use(OpFamily::kNorm, m_, size(n, dtype_), size(n, dtype_), launches,
                                   dtype_, passes_)};
  const OpIndex at = after < 0 ? graph_.add(op) : graph_.add(op, {after});
  if (launches > 1) {
    for (int i = 0; i < 2; ++i) {
      graph_.release(
          graph_.hold("norm intermediate", Owner::kActivations,
                      allocator_rounded(in_, bytes_of(n / m_ * held_, Dtype::kFp32)), at),
          at);
    }
  }
  return at;
}

LayerBuilder::Projected LayerBuilder::open() {
  input_ = activation("layer input", m_ * llm_.d_model, 0);
  const OpIndex first = norm("input norm", -1);
  normed_ = activation("input norm output", m_ * llm_.d_model, first);
  return project(first);
}

LayerBuilder::Projected LayerBuilder::project(OpIndex after) {
  const AttentionSpec& a = attention_;
  const std::int64_t d = llm_.d_model;
  const std::int64_t q_width = static_cast<std::int64_t>(a.n_heads) * a.head_dim;
  Projected out;

  OpIndex at = after;
  const bool fused = in_.stack->fused_projections && !a.is_latent();
  const std::int64_t v_width = static_cast<std::int64_t>(a.n_kv_heads) * a.v_head_dim;
  if (fused) {
    at = gemm("query, key and value projection", m_, d,
              q_width + static_cast<std::int64_t>(a.n_kv_heads) * a.head_dim + v_width, at,
              input_projection());
  } else if (a.q_lora_rank > 0) {
    at = gemm("query down projection", m_, d, a.q_lora_rank, at, input_projection());
    const std::size_t low = activation("low-rank queries", m_ * a.q_lora_rank, at);
    at = gemm("query up projection", m_, a.q_lora_rank, q_width, at, input_projection());
    graph_.release(low, at);
  } else {
    at = gemm("query projection", m_, d, q_width, at, input_projection());
  }
  out.q = activation("queries", m_ * q_width, at);

  std::int64_t k_width = static_cast<std::int64_t>(a.n_kv_heads) * a.head_dim;
  if (a.is_latent()) {
    k_width = a.kv_lora_rank + a.rope_head_dim;
    at = gemm("latent projection", m_, d, k_width, at, input_projection());
    out.k = activation("latents", m_ * k_width, at);
    // At prefill keys and values of all heads; at decode the same weights, absorbed into queries
    // and outputs, with the same arithmetic.
    const std::int64_t wide =
        static_cast<std::int64_t>(a.n_heads) * (a.head_dim - a.rope_head_dim + a.v_head_dim);
    at = gemm("latent expansion", m_, a.kv_lora_rank, wide, at, input_projection());
    out.v = activation("expanded keys and values", m_ * wide, at);
  } else {
    if (!fused) at = gemm("key projection", m_, d, k_width, at, input_projection());
    out.k = activation("keys", m_ * k_width, at);
    if (!fused) at = gemm("value projection", m_, d, v_width, at, input_projection());
    out.v = activation("values", m_ * v_width, at);
  }
  if (!in_.stack->keeps_inputs) drop(normed_, at);

  if (llm_.rope_theta > 0) {
    const std::int64_t n = m_ * (q_width + k_width);
    const std::int32_t launches = in_.stack->rope_launches;
    const std::int64_t passes = rotation_passes(*in_.stack);
    at = stream("rope", OpFamily::kRope, n * passes, n * passes, at, launches);
    if (runs_by_operators(*in_.stack)) {
      graph_.release(activation("rotated halves", 2 * m_ * q_width, at), at);
      drop(out.q, at);
      drop(out.k, at);
      out.q = activation("rotated queries", m_ * q_width, at);
      out.k = activation("rotated keys", m_ * k_width, at);
    }
  }
  out.op = at;
  return out;
}

void LayerBuilder::release_inputs(const Projected& qkv, OpIndex last) {
  if (in_.stack->keeps_inputs) return;
  for (const auto& tensor : {qkv.q, qkv.k, qkv.v}) drop(tensor, last);
}

OpIndex LayerBuilder::project_out(const Projected& qkv, OpIndex after) {
  const std::int64_t width = static_cast<std::int64_t>(attention_.n_heads) * attention_.v_head_dim;
  OpIndex at = gemm("output projection", m_, width, llm_.d_model, after,
                    {WeightPart::kLinear, attention_.output_format});
  if (in_.stack->keeps_inputs) {
    for (const auto& tensor : {qkv.q, qkv.k, qkv.v, normed_}) drop(tensor, at);
  }
  drop(attended_, at);
  attended_ = activation("attention block output", m_ * llm_.d_model, at);
  at = all_reduce(m_ * llm_.d_model, at);
  return at;
}

/// From the attention block's output to the layer's.
OpIndex LayerBuilder::close(OpIndex after) {
  const std::int64_t n = m_ * llm_.d_model;
  const bool keeps = in_.stack->keeps_inputs;
  OpIndex at = stream("residual add", OpFamily::kElementwise, 2 * n, n, after);
  drop(attended_, at);
  if (!keeps) drop(input_, at);
  const std::size_t residual = activation("residual", n, at);
  at = norm("feed-forward norm", at);
  const std::size_t normed = activation("feed-forward norm output", n, at);
  at = all_reduce(n, feed_forward(at));
  graph_.release(normed, at);
  at = stream("residual add", OpFamily::kElementwise, 2 * n, n, at);
  drop(block_out_, at);
  graph_.release(residual, at);
  if (keeps) drop(input_, at);
  (void)activation("layer output", n, at);
  return at;
}

}  // namespace kvsim
