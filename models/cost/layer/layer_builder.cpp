#include "models/cost/layer/layer_builder.hpp"

#include <algorithm>

#include "models/cost/layer/collectives.hpp"
#include "models/cost/rates/kernel_use.hpp"
#include "models/units/check.hpp"

namespace kvsim {

double LayerBuilder::size(std::int64_t elements, Dtype dtype) {
  return static_cast<double>(bytes_of(elements, dtype).count());
}

LayerBuilder::LayerBuilder(const CostInput& in, std::int32_t layer, std::int64_t tokens)
    : in_{in},
      llm_{*in.llm},
      spec_{in.llm->layers[static_cast<std::size_t>(layer)]},
      attention_{spec_.attention},
      work_{attention_work(attention_)},
      matrices_{mixer_matrices(spec_, llm_.d_model)},
      mlp_{spec_.mlp},
      rows_{in, layer},
      layer_{layer},
      dtype_{activation_dtype(in.weight_dtype)} {
  take(tokens);
}

void LayerBuilder::take(std::int64_t tokens) {
  tokens_ = tokens;
  m_ = in_.batch * tokens;
  held_ = rows_at_once(in_, tokens);
  passes_ = static_cast<std::int32_t>((m_ + held_ - 1) / held_);
}

std::size_t LayerBuilder::hold(std::string_view name, Owner owner, const Product& size,
                               OpIndex first) {
  return graph_.hold(name, owner, size, allocator_rounded(in_, size.bytes()), first);
}

void LayerBuilder::hold_during(std::string_view name, Owner owner, const Product& size,
                               OpIndex at) {
  graph_.release(hold(name, owner, size, at), at);
}

std::size_t LayerBuilder::activation(std::string_view name, Product size, OpIndex first) {
  return hold(name, Owner::kActivations, size.in(dtype_), first);
}

Product LayerBuilder::rows() const {
  if (held_ < m_) return Product{}.times(held_, "tokens at once");
  return Product{}.times(in_.batch, "batch").times(tokens_, "tokens");
}

Product LayerBuilder::block_rows(std::int64_t n, std::int64_t width) const {
  if (n == m_) return rows().times(width);
  if (n % m_ == 0) return rows().times(n / m_, "experts").times(width);
  return Product{}.times(n * width / m_ * held_, "elements");
}

Product LayerBuilder::rows(std::int64_t width, std::int64_t heads, const char* unit) const {
  if (heads <= 0 || width % heads != 0) return rows().times(width);
  return rows().times(heads, unit).times(width / heads);
}

Product LayerBuilder::score_rows(std::int64_t columns, const char* unit) const {
  Product out = held_ < m_ ? rows() : Product{}.times(in_.batch, "batch");
  out.times(attention_.n_heads, "query heads");
  if (held_ == m_ && tokens_ > 1) out.times(tokens_, "query rows");
  return out.times(columns, unit);
}

Product LayerBuilder::output_of(const LayerMatrix& matrix) const {
  const std::int64_t queries = attention_.n_heads;
  switch (matrix.role) {
    case MatrixRole::kQuery:
      return rows(matrix.out, queries, "query heads");
    case MatrixRole::kKey:
      return work_.is_latent ? rows().times(matrix.out)
                             : rows(matrix.out, attention_.n_kv_heads, "heads");
    case MatrixRole::kValue:
      return work_.is_latent ? rows(matrix.out, queries, "query heads")
                             : rows(matrix.out, attention_.n_kv_heads, "heads");
    default:
      return rows().times(matrix.out);
  }
}

OpIndex LayerBuilder::eager_softmax(std::int64_t n, const Product& matrix_size, double mask,
                                    Dtype element, OpIndex after, std::size_t& weights) {
  const auto matrix = [&](std::string_view name, Dtype dtype, OpIndex first) {
    return hold(name, Owner::kScores, Product{matrix_size}.in(dtype), first);
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
              .size = &CacheRows::keys_size,
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
              .size = &CacheRows::values_size,
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
  if (work_.rows == 0 || !work_.holds_rows) return {};
  return std::span{kParts}.first(work_.is_latent ? 1 : 2);
}

Bytes LayerBuilder::payload(const CachePart& part, std::int64_t entries) const {
  return (rows_.*part.payload)(entries);
}

Product LayerBuilder::part_size(const CachePart& part, std::int64_t entries) const {
  return (rows_.*part.size)(entries, {});
}

void LayerBuilder::hold_cache(CacheTensors& cache, const CachePart& part, std::int64_t entries,
                              OpIndex first) {
  cache.*part.tensor = hold(part.name, Owner::kKvCache, part_size(part, entries), first);
}

void LayerBuilder::hold_other(CacheTensors& cache, std::int64_t entries, OpIndex first) {
  if (!rows_.has_other()) return;
  cache.other = hold("states and index", Owner::kKvCache, rows_.other_size(entries), first);
}

void LayerBuilder::drop(const std::optional<std::size_t>& tensor, OpIndex last) {
  if (tensor) graph_.release(*tensor, last);
}

void LayerBuilder::replace(CacheTensors& cache, const CachePart& part, std::string_view copy,
                           Owner while_copied, std::int64_t entries, OpIndex at) {
  drop(cache.*part.tensor, at);
  hold_during(copy, while_copied, part_size(part, entries), at);
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
  return graph_.add(collective_op("all-reduce", CollectiveKind::kAllReduce, size(elements, dtype_),
                                  in_.tensor_parallel, dtype_, passes_),
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

/// Adds an RMSNorm. If unfused, its operators pass fp32 intermediates through memory, two of them
/// alive simultaneously.
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
      hold_during("norm intermediate", Owner::kActivations,
                  rows().times(llm_.d_model).in(Dtype::kFp32), at);
    }
  }
  return at;
}

LayerBuilder::Projected LayerBuilder::open() {
  OpIndex before = -1;
  if (const Bytes away = host_weights(in_, layer_); away > Bytes{}) {
    const OpIndex read = graph_.add({.name = "weights from host memory",
                                     .family = OpFamily::kHostCopy,
                                     .bytes_read = static_cast<double>(away.count()),
                                     .stream = in_.stack->overlaps_weights ? 1 : 0,
                                     .dtype = dtype_});
    if (!in_.stack->overlaps_weights) before = read;
  }
  input_ = activation("layer input", rows().times(llm_.d_model), 0);
  if (!has_mixers()) return {.op = before};
  const OpIndex first = norm("input norm", before);
  normed_ = activation("input norm output", rows().times(llm_.d_model), first);
  return project(first);
}

std::size_t LayerBuilder::matrix_of(MatrixRole role) const {
  const auto found = std::find_if(matrices_.begin(), matrices_.end(),
                                  [&](const LayerMatrix& m) { return m.role == role; });
  KVSIM_CHECK(found != matrices_.end(), "layer {} has no such matrix", layer_);
  return static_cast<std::size_t>(found - matrices_.begin());
}

LayerBuilder::Projected LayerBuilder::project(OpIndex after) {
  Projected out;
  out.op = after;
  if (!has_attention()) {
    out.op = project_sides(after);
    if (!in_.stack->keeps_inputs) drop(normed_, out.op);
    return out;
  }
  OpIndex at = after;
  const std::size_t end = matrix_of(MatrixRole::kOutput);
  const std::span inputs = std::span{matrices_}.first(end);
  const bool fused = in_.stack->fused_projections && !work_.is_latent;
  if (fused) {
    std::int64_t width = 0;
    for (const LayerMatrix& m : inputs) width += m.out;
    at = gemm("query, key and value projection", m_, llm_.d_model, width, at, place_of(0));
  }
  std::optional<std::size_t> inner;
  std::int64_t rotated = 0;  // elements per token
  for (std::size_t i = 0; i < end; ++i) {
    const LayerMatrix& m = matrices_[i];
    if (m.role == MatrixRole::kOutputInner) continue;
    if (!fused) at = gemm(m.operation, m_, m.in, m.out, at, place_of(i));
    const std::size_t made = activation(m.result, output_of(m), at);
    drop(inner, at);
    inner.reset();
    if (m.role == MatrixRole::kInner) inner = made;
    if (m.role == MatrixRole::kQuery) out.q = made;
    if (m.role == MatrixRole::kKey) out.k = made;
    if (m.role == MatrixRole::kValue) out.v = made;
    if (m.role == MatrixRole::kQuery || m.role == MatrixRole::kKey) rotated += m.out;
  }
  at = project_sides(at);
  if (!in_.stack->keeps_inputs) drop(normed_, at);

  if (llm_.rope_theta > 0) {
    const std::int64_t q_width = matrices_[matrix_of(MatrixRole::kQuery)].out;
    const std::int64_t n = m_ * rotated;
    const std::int32_t launches = in_.stack->rope_launches;
    const std::int64_t passes = rotation_passes(*in_.stack);
    at = stream("rope", OpFamily::kRope, n * passes, n * passes, at, launches);
    if (runs_by_operators(*in_.stack)) {
      hold_during("rotated halves", Owner::kActivations,
                  rows(2 * q_width, 2 * attention_.n_heads, "halves of query heads").in(dtype_),
                  at);
      drop(out.q, at);
      drop(out.k, at);
      out.q = activation("rotated queries", rows(q_width, attention_.n_heads, "query heads"), at);
      out.k = activation(
          "rotated keys",
          rows(rotated - q_width, work_.is_latent ? 0 : attention_.n_kv_heads, "heads"), at);
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
  if (!has_mixers()) return after;
  OpIndex at = after;
  for (std::size_t i = 0; i < matrices_.size(); ++i) {
    const LayerMatrix& m = matrices_[i];
    if (m.role == MatrixRole::kOutputInner) {
      at = gemm(m.operation, m_, m.in, m.out, at, place_of(i));
      drop(attended_, at);
      attended_ = activation(m.result, rows().times(m.out), at);
    }
    if (m.role != MatrixRole::kOutput) continue;
    const bool of_state = !has_attention() || i > matrix_of(MatrixRole::kOutput);
    std::optional<std::size_t>& block = of_state ? recurrent_ : attended_;
    if (!of_state && attention_.gate_dim > 0) {
      at = stream("output gate", OpFamily::kElementwise, 2 * m_ * m.in, m_ * m.in, at);
    }
    at = gemm(m.operation, m_, m.in, m.out, at, place_of(i));
    if (in_.stack->keeps_inputs && !of_state) {
      for (const auto& tensor : {qkv.q, qkv.k, qkv.v}) drop(tensor, at);
    }
    const bool is_last = of_state || state_kind(spec_.state).name() == "none";
    if (in_.stack->keeps_inputs && is_last) drop(normed_, at);
    drop(block, at);
    block =
        activation(of_state ? m.result : "attention block output", rows().times(llm_.d_model), at);
    at = all_reduce(m_ * llm_.d_model, at);
  }
  for (const std::size_t side : sides_) graph_.release(side, at);
  if (attended_ && recurrent_) {
    at = stream("sum of both blocks", OpFamily::kElementwise, 2 * m_ * llm_.d_model,
                m_ * llm_.d_model, at);
    drop(recurrent_, at);
  } else if (recurrent_) {
    attended_ = recurrent_;
  }
  return at;
}

/// Adds the operators from the attention block's output to the layer's output.
OpIndex LayerBuilder::close(OpIndex after) {
  const std::int64_t n = m_ * llm_.d_model;
  const Product hidden = rows().times(llm_.d_model);
  const bool keeps = in_.stack->keeps_inputs;
  OpIndex at = after;
  std::optional<std::size_t> residual = input_;
  const auto add_residual = [&] {
    at = stream("residual add", OpFamily::kElementwise, 2 * n, n, at);
  };
  if (has_mixers()) {
    add_residual();
    drop(attended_, at);
    if (!keeps) drop(input_, at);
    residual = activation("residual", hidden, at);
  }
  if (mlp_.d_ff > 0) {
    at = norm("feed-forward norm", at);
    const std::size_t normed = activation("feed-forward norm output", hidden, at);
    at = all_reduce(n, feed_forward(at));
    graph_.release(normed, at);
    add_residual();
    drop(block_out_, at);
    drop(residual, at);
  } else {
    drop(residual, at);
  }
  if (keeps) drop(input_, at);
  (void)activation("layer output", hidden, at);
  return at;
}

}  // namespace kvsim
