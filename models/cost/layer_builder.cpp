#include "models/cost/layer_builder.hpp"

#include <algorithm>
#include <cmath>

#include "models/units/check.hpp"

namespace kvsim {
namespace {

// Query rows of ScoreExec::kEagerChunked where no memory pressure asks for fewer.
constexpr std::int64_t kScoreChunk = 1024;
constexpr double kFp32Bytes = 4;

double size(std::int64_t elements, Dtype dtype) {
  return static_cast<double>(bytes_of(elements, dtype).count());
}

/// (query, key) pairs one head of a causal prompt attends over: half the square, cut by a window.
double causal_pairs(std::int64_t prompt, std::int32_t window) {
  const auto s = static_cast<double>(prompt);
  const auto w = static_cast<double>(window);
  return window == 0 || prompt <= window ? s * s / 2 : w * s - w * w / 2;
}

/// Distinct experts that `tokens` tokens visit when each picks top_k of them evenly.
double expected_experts(const MlpSpec& mlp, std::int64_t tokens) {
  const double n = mlp.n_experts;
  return n * (1 - std::pow(1 - static_cast<double>(mlp.top_k) / n, static_cast<double>(tokens)));
}

}  // namespace

CacheRows::CacheRows(const CostInput& in, const AttentionSpec& attention) : in_{in} {
  if (attention.is_latent()) {
    const std::int32_t row = attention.kv_lora_rank + attention.rope_head_dim;
    shape_ = {.n_heads = attention.n_heads, .n_kv_heads = 1, .head_dim = row / 2};
    stored_heads_ = 1;
    key_elements_ = row;
  } else {
    shape_ = {.n_heads = attention.n_heads,
              .n_kv_heads = attention.n_kv_heads,
              .head_dim = (attention.head_dim + attention.v_head_dim) / 2};
    stored_heads_ = in.method->stored_heads(shape_);
    key_elements_ = static_cast<std::int64_t>(stored_heads_) * attention.head_dim;
    value_elements_ = static_cast<std::int64_t>(stored_heads_) * attention.v_head_dim;
  }
  dtype_ = in.method->store_dtype(in.kv_dtype);
}

Bytes CacheRows::keys(std::int64_t entries) const {
  return bytes_of(in_.batch * entries * key_elements_, dtype_);
}
Bytes CacheRows::values(std::int64_t entries) const {
  return bytes_of(in_.batch * entries * value_elements_, dtype_);
}
Bytes CacheRows::side(std::int64_t entries) const {
  return in_.method->side_bytes(entries, in_.kv_dtype) * (in_.batch * stored_heads_);
}

LayerCache CacheRows::cache(std::int64_t entries) const {
  return {.keys = charged_bytes(*in_.stack, keys(entries)),
          .values = charged_bytes(*in_.stack, values(entries)),
          .side = charged_bytes(*in_.stack, side(entries))};
}

LayerBuilder::LayerBuilder(const CostInput& in, std::int32_t layer, std::int64_t tokens)
    : in_{in},
      llm_{*in.llm},
      attention_{in.llm->layers[static_cast<std::size_t>(layer)].attention},
      mlp_{in.llm->layers[static_cast<std::size_t>(layer)].mlp},
      rows_{in, attention_},
      tokens_{tokens},
      m_{in.batch * tokens},
      dtype_{activation_dtype(in.weight_dtype)} {}

std::size_t LayerBuilder::activation(std::string_view name, std::int64_t elements, OpIndex first) {
  return graph_.hold(name, Owner::kActivations,
                     charged_bytes(*in_.stack, bytes_of(elements, dtype_)), first);
}

std::size_t LayerBuilder::hold_cache(std::string_view name, Bytes payload, OpIndex first) {
  return graph_.hold(name, Owner::kKvCache, charged_bytes(*in_.stack, payload), first);
}

void LayerBuilder::drop(const std::optional<std::size_t>& tensor, OpIndex last) {
  if (tensor) graph_.release(*tensor, last);
}

OpIndex LayerBuilder::gemm(std::string_view name, std::int64_t rows, std::int64_t in,
                           std::int64_t out, OpIndex after, double weight_share) {
  return graph_.add(
      {.name = name,
       .family = OpFamily::kGemm,
       .flops = FlopCount{2.0 * static_cast<double>(rows) * static_cast<double>(in) *
                          static_cast<double>(out)},
       .bytes_read = size(in * out, in_.weight_dtype) * weight_share + size(rows * in, dtype_),
       .bytes_written = size(rows * out, dtype_),
       .dtype = in_.weight_dtype},
      {after});
}

OpIndex LayerBuilder::stream(std::string_view name, OpFamily family, std::int64_t read,
                             std::int64_t written, OpIndex after, std::int32_t launches) {
  return graph_.add({.name = name,
                     .family = family,
                     .bytes_read = size(read, dtype_),
                     .bytes_written = size(written, dtype_),
                     .launches = launches,
                     .dtype = dtype_},
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
              .launches = launches,
              .dtype = Dtype::kFp32};
  const OpIndex at = after < 0 ? graph_.add(op) : graph_.add(op, {after});
  if (launches > 1) {
    for (int i = 0; i < 2; ++i) {
      graph_.release(graph_.hold("norm intermediate", Owner::kActivations,
                                 charged_bytes(*in_.stack, bytes_of(n, Dtype::kFp32)), at),
                     at);
    }
  }
  return at;
}

LayerBuilder::Projected LayerBuilder::project(OpIndex after) {
  const AttentionSpec& a = attention_;
  const std::int64_t d = llm_.d_model;
  const std::int64_t q_width = static_cast<std::int64_t>(a.n_heads) * a.head_dim;
  Projected out;

  OpIndex at = after;
  if (a.q_lora_rank > 0) {
    at = gemm("query down projection", m_, d, a.q_lora_rank, at);
    const std::size_t low = activation("low-rank queries", m_ * a.q_lora_rank, at);
    at = gemm("query up projection", m_, a.q_lora_rank, q_width, at);
    graph_.release(low, at);
  } else {
    at = gemm("query projection", m_, d, q_width, at);
  }
  out.q = activation("queries", m_ * q_width, at);

  std::int64_t k_width = static_cast<std::int64_t>(a.n_kv_heads) * a.head_dim;
  if (a.is_latent()) {
    k_width = a.kv_lora_rank + a.rope_head_dim;
    at = gemm("latent projection", m_, d, k_width, at);
    out.k = activation("latents", m_ * k_width, at);
    // At prefill keys and values of all heads; at decode the same weights, absorbed into queries
    // and outputs, with the same arithmetic.
    const std::int64_t wide =
        static_cast<std::int64_t>(a.n_heads) * (a.head_dim - a.rope_head_dim + a.v_head_dim);
    at = gemm("latent expansion", m_, a.kv_lora_rank, wide, at);
    out.v = activation("expanded keys and values", m_ * wide, at);
  } else {
    const std::int64_t v_width = static_cast<std::int64_t>(a.n_kv_heads) * a.v_head_dim;
    at = gemm("key projection", m_, d, k_width, at);
    out.k = activation("keys", m_ * k_width, at);
    at = gemm("value projection", m_, d, v_width, at);
    out.v = activation("values", m_ * v_width, at);
  }
  if (!in_.stack->keeps_inputs) drop(normed_, at);

  if (llm_.rope_theta > 0) {
    const std::int64_t n = m_ * (q_width + k_width);
    const std::int32_t launches = in_.stack->rope_launches;
    // Five operators a tensor when unfused, each reading and writing it about once.
    const std::int64_t passes = launches > 1 ? launches / 2 : 1;
    at = stream("rope", OpFamily::kRope, n * passes, n * passes, at, launches);
    if (launches > 1) {
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

OpIndex LayerBuilder::attend_prompt(const Projected& qkv, std::int64_t prompt) {
  const AttentionSpec& a = attention_;
  const auto batch = static_cast<double>(in_.batch);
  const auto heads = static_cast<double>(a.n_heads);
  const std::int64_t q = m_ * a.n_heads * a.head_dim;
  const std::int64_t out = m_ * a.n_heads * a.v_head_dim;
  const std::int64_t kv = a.is_latent()
                              ? m_ * a.n_heads * (a.head_dim - a.rope_head_dim + a.v_head_dim)
                              : m_ * a.n_kv_heads * (a.head_dim + a.v_head_dim);
  OpIndex at = qkv.op;
  std::int64_t kv_read = kv;
  std::optional<std::size_t> expanded;
  if (in_.stack->expands_kv_heads && !a.is_latent() && a.n_heads > a.n_kv_heads) {
    kv_read = kv / a.n_kv_heads * a.n_heads;
    at = stream("repeat keys and values", OpFamily::kExpandCopy, kv, kv_read, at, 2);
    expanded = graph_.hold("repeated keys and values", Owner::kKvExpansion,
                           charged_bytes(*in_.stack, bytes_of(kv_read, dtype_)), at);
  }
  if (in_.stack->attention == AttentionExec::kFused) {
    const double pairs = causal_pairs(prompt, a.window);
    at = graph_.add({.name = "attention",
                     .family = OpFamily::kPrefillAttention,
                     .flops = FlopCount{2 * batch * heads * pairs *
                                        static_cast<double>(a.head_dim + a.v_head_dim)},
                     .bytes_read = size(q + kv_read, dtype_),
                     .bytes_written = size(out, dtype_),
                     .dtype = dtype_},
                    {at});
    attended_ = activation("attention output", out, at);
    drop(expanded, at);
    return at;
  }

  // Matmul, softmax in fp32, cast back, matmul: every matrix whole, whatever the mask.
  const std::int64_t n = in_.batch * a.n_heads * prompt * prompt;
  const auto matrix = [&](std::string_view name, Dtype dtype, OpIndex first) {
    return graph_.hold(name, Owner::kScores, charged_bytes(*in_.stack, bytes_of(n, dtype)), first);
  };
  const double square = static_cast<double>(n);
  at = graph_.add({.name = "attention scores",
                   .family = OpFamily::kPrefillAttention,
                   .flops = FlopCount{2 * square * a.head_dim},
                   .bytes_read = size(q, dtype_) + size(kv_read, dtype_) / 2,
                   .bytes_written = size(n, dtype_),
                   .dtype = dtype_},
                  {at});
  const std::size_t logits = matrix("attention scores", dtype_, at);
  at = graph_.add({.name = "softmax",
                   .family = OpFamily::kElementwise,
                   .bytes_read = size(n, dtype_) + size(m_ * prompt, dtype_),
                   .bytes_written = size(n, Dtype::kFp32),
                   .launches = 2,
                   .dtype = Dtype::kFp32},
                  {at});
  std::size_t weights = matrix("fp32 softmax", Dtype::kFp32, at);
  if (dtype_ != Dtype::kFp32) {
    at = graph_.add({.name = "softmax cast",
                     .family = OpFamily::kElementwise,
                     .bytes_read = size(n, Dtype::kFp32),
                     .bytes_written = size(n, dtype_),
                     .dtype = Dtype::kFp32},
                    {at});
    graph_.release(weights, at);
    weights = matrix("attention probabilities", dtype_, at);
  }
  graph_.release(logits, at);
  at = graph_.add({.name = "attention values",
                   .family = OpFamily::kPrefillAttention,
                   .flops = FlopCount{2 * square * a.v_head_dim},
                   .bytes_read = size(n, dtype_) + size(kv_read, dtype_) / 2,
                   .bytes_written = size(out, dtype_),
                   .dtype = dtype_},
                  {at});
  attended_ = activation("attention output", out, at);
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
      graph_.release(matrix("copy of the attention scores", dtype_, at), at);
    }
  }
  graph_.release(weights, at);
  return at;
}

/// What a method pays at prefill for scores that fused attention does not return.
OpIndex LayerBuilder::score_prompt(OpIndex after, const PrefillMoment& moment) {
  const MethodNeeds needs = in_.method->needs();
  if (needs.prompt_scores == PromptScoreClass::kNone ||
      in_.stack->attention == AttentionExec::kEager) {
    return after;
  }
  const AttentionSpec& a = attention_;
  const std::int64_t s = moment.prompt;
  const std::int64_t key_elements = m_ * (a.is_latent() ? a.n_heads : a.n_kv_heads) * a.head_dim;
  const double keys = size(key_elements, dtype_);
  const double queries = size(m_ * a.n_heads * a.head_dim, dtype_);
  const double sums = static_cast<double>(in_.batch * rows_.stored_heads() * s) * kFp32Bytes;
  const auto hold_once = [&](std::string_view name, Bytes bytes, OpIndex at) {
    graph_.release(graph_.hold(name, Owner::kScores, charged_bytes(*in_.stack, bytes), at), at);
  };

  if (needs.prompt_scores == PromptScoreClass::kLastWindow) {
    const std::int64_t rows = std::min<std::int64_t>(needs.prompt_window, s);
    const std::int64_t n = in_.batch * a.n_heads * rows * s;
    const double matrix = size(n, Dtype::kFp32);
    const OpIndex at = graph_.add({.name = "window scores",
                                   .family = OpFamily::kScorePass,
                                   .flops = FlopCount{2.0 * static_cast<double>(n) * a.head_dim},
                                   .bytes_read = keys + matrix,
                                   .bytes_written = matrix + sums,
                                   .launches = 3,
                                   .dtype = dtype_},
                                  {after});
    hold_once("window scores", bytes_of(n, Dtype::kFp32), at);
    return at;
  }

  if (needs.score_exec == ScoreExec::kFusedTwoPass) {
    const std::int64_t row_sums = in_.batch * a.n_heads * s;
    const OpIndex at =
        graph_.add({.name = "column sums",
                    .family = OpFamily::kScorePass,
                    .flops = FlopCount{2.0 * static_cast<double>(in_.batch) * a.n_heads *
                                       causal_pairs(s, a.window) * a.head_dim},
                    .bytes_read = queries + keys + size(row_sums, Dtype::kFp32),
                    .bytes_written = sums,
                    .dtype = dtype_},
                   {after});
    hold_once("row sums", bytes_of(row_sums, Dtype::kFp32), at);
    return at;
  }

  std::int64_t rows = std::min(moment.score_rows, s);
  if (needs.score_exec == ScoreExec::kEagerChunked) rows = std::min(rows, kScoreChunk);
  const std::int64_t chunks = (s + rows - 1) / rows;
  const std::int64_t n = in_.batch * a.n_heads * s * s;
  const std::int64_t n_chunk = in_.batch * a.n_heads * rows * s;
  // Each matrix is written once and read once.
  const double traffic =
      size(n, dtype_) * needs.score_copies + (needs.fp32_softmax ? size(n, Dtype::kFp32) : 0.0);
  const OpIndex at =
      graph_.add({.name = "attention scores",
                  .family = OpFamily::kScorePass,
                  .flops = FlopCount{2.0 * static_cast<double>(n) * a.head_dim},
                  .bytes_read = queries + keys * static_cast<double>(chunks) + traffic,
                  .bytes_written = traffic + sums,
                  .launches = static_cast<std::int32_t>(4 * chunks),
                  .dtype = dtype_},
                 {after});
  for (std::int32_t i = 0; i < needs.score_copies; ++i) {
    hold_once(i == 0 ? "attention scores" : "copy of the attention scores",
              bytes_of(n_chunk, dtype_), at);
  }
  if (needs.fp32_softmax) hold_once("fp32 softmax", bytes_of(n_chunk, Dtype::kFp32), at);
  return at;
}

/// The old tensor and its copy live together at operator `at`; after it only the copy does.
OpIndex LayerBuilder::replace(std::optional<std::size_t>& tensor, std::string_view name,
                              std::string_view copy, Owner while_copied, Bytes fresh, OpIndex at) {
  drop(tensor, at);
  graph_.release(graph_.hold(copy, while_copied, charged_bytes(*in_.stack, fresh), at), at);
  tensor = hold_cache(name, fresh, at + 1);
  return at;
}

OpGraph LayerBuilder::prefill(const PrefillMoment& moment) {
  const bool is_static = in_.stack->growth == CacheGrowth::kStatic;
  const bool keeps = in_.stack->keeps_inputs;
  const bool latent = attention_.is_latent();
  input_ = activation("layer input", m_ * llm_.d_model, 0);
  const OpIndex first = norm("input norm", -1);
  normed_ = activation("input norm output", m_ * llm_.d_model, first);

  Projected qkv = project(first);
  // What was projected is the cache itself, unless it is stored in another form.
  const bool direct = !is_static && bits_of(rows_.dtype()) == bits_of(dtype_) &&
                      rows_.stored_heads() == rows_.shape().n_kv_heads;
  CacheTensors cache;
  if (direct) {
    const auto adopt = [&](std::string_view name, std::optional<std::size_t>& made, Bytes payload) {
      const OpIndex since = graph_.tensors()[*made].first;
      drop(made, since - 1);  // held as cache instead, from the same operator on
      made.reset();
      return hold_cache(name, payload, since);
    };
    cache.keys = adopt("keys", qkv.k, rows_.keys(moment.prompt));
    if (!latent) cache.values = adopt("values", qkv.v, rows_.values(moment.prompt));
  } else {
    const double made = size(m_ * kv_elements(), dtype_);
    const Bytes stored = rows_.keys(moment.prompt) + rows_.values(moment.prompt);
    qkv.op = graph_.add({.name = "cache write",
                         .family = OpFamily::kCacheWrite,
                         .bytes_read = made,
                         .bytes_written = static_cast<double>(stored.count()),
                         .launches = 2,
                         .dtype = dtype_},
                        {qkv.op});
    if (!is_static) {
      cache.keys = hold_cache("keys", rows_.keys(moment.prompt), qkv.op);
      if (!latent) cache.values = hold_cache("values", rows_.values(moment.prompt), qkv.op);
    }
  }

  OpIndex at = attend_prompt(qkv, moment.prompt);
  at = score_prompt(at, moment);
  if (!keeps) {
    for (const auto& tensor : {qkv.q, qkv.k, qkv.v}) drop(tensor, at);
  }
  const std::int64_t width = static_cast<std::int64_t>(attention_.n_heads) * attention_.v_head_dim;
  at = gemm("output projection", m_, width, llm_.d_model, at);
  if (keeps) {
    for (const auto& tensor : {qkv.q, qkv.k, qkv.v}) drop(tensor, at);
    drop(normed_, at);
  }
  drop(attended_, at);

  std::int64_t entries = moment.prompt;
  const std::size_t projected = activation("attention block output", m_ * llm_.d_model, at);
  attended_ = projected;
  if (in_.method->prefill_peak() == PrefillPeak::kPerLayer && moment.kept < moment.prompt) {
    entries = moment.kept;
    at = compact(cache, moment.prompt, moment.kept, at);
  }
  const Bytes side = charged_bytes(*in_.stack, rows_.side(entries));
  if (side > Bytes{} && !is_static) {
    graph_.hold("side data", Owner::kSideData, side, at + 1);
  }
  close(at);
  return std::move(graph_);
}

std::int64_t LayerBuilder::kv_elements() const {
  return attention_.is_latent() ? attention_.kv_lora_rank + attention_.rope_head_dim
                                : static_cast<std::int64_t>(attention_.n_kv_heads) *
                                      (attention_.head_dim + attention_.v_head_dim);
}

/// Scores ranked and the survivors gathered: keys first, then values.
OpIndex LayerBuilder::compact(CacheTensors& cache, std::int64_t from, std::int64_t to,
                              OpIndex after) {
  const auto gather = [&](std::string_view name, Bytes kept, double ranked, OpIndex before) {
    const auto moved = static_cast<double>(kept.count());
    const Op op{.name = name,
                .family = OpFamily::kCompaction,
                .bytes_read = moved + ranked,
                .bytes_written = moved,
                .launches = 2,
                .dtype = dtype_};
    return before < 0 ? graph_.add(op) : graph_.add(op, {before});
  };
  const double ranked = static_cast<double>(in_.batch * rows_.stored_heads() * from) * kFp32Bytes;
  const bool is_static = in_.stack->growth == CacheGrowth::kStatic;
  OpIndex at = gather("compact keys", rows_.keys(to), ranked, after);
  if (!is_static) {
    replace(cache.keys, "keys", "compacted keys", Owner::kCompaction, rows_.keys(to), at);
  }
  if (rows_.values(to) > Bytes{}) {
    at = gather("compact values", rows_.values(to), 0, at);
    if (!is_static) {
      replace(cache.values, "values", "compacted values", Owner::kCompaction, rows_.values(to), at);
    }
  }
  return at;
}

OpGraph LayerBuilder::compress(std::int64_t prompt, std::int64_t kept) {
  if (kept == prompt) {
    graph_.add({.name = "nothing to compress", .launches = 0, .dtype = dtype_});
    return std::move(graph_);
  }
  CacheTensors cache;
  if (in_.stack->growth != CacheGrowth::kStatic) {
    cache.keys = hold_cache("keys", rows_.keys(prompt), 0);
    if (rows_.values(prompt) > Bytes{}) {
      cache.values = hold_cache("values", rows_.values(prompt), 0);
    }
    const Bytes side = charged_bytes(*in_.stack, rows_.side(prompt));
    if (side > Bytes{}) graph_.hold("side data", Owner::kSideData, side, 0);
  }
  compact(cache, prompt, kept, -1);
  return std::move(graph_);
}

OpGraph LayerBuilder::decode(const DecodeMoment& moment) {
  const bool is_static = in_.stack->growth == CacheGrowth::kStatic;
  const bool keeps = in_.stack->keeps_inputs;
  const bool latent = attention_.is_latent();
  const auto batch = static_cast<double>(in_.batch);
  StepTraffic traffic = in_.method->decode_traffic(
      rows_.shape(), in_.kv_dtype, static_cast<double>(moment.attended), moment.evicts);

  input_ = activation("layer input", m_ * llm_.d_model, 0);
  CacheTensors cache;
  const Bytes side_before = charged_bytes(*in_.stack, rows_.side(moment.before));
  std::optional<std::size_t> side;
  if (!is_static) {
    cache.keys = hold_cache("keys", rows_.keys(moment.before), 0);
    if (!latent) cache.values = hold_cache("values", rows_.values(moment.before), 0);
    if (in_.method->side_bytes(1, in_.kv_dtype) > Bytes{}) {
      side = graph_.hold("side data", Owner::kSideData, side_before, 0);
    }
  }
  const OpIndex first = norm("input norm", -1);
  normed_ = activation("input norm output", m_ * llm_.d_model, first);
  Projected qkv = project(first);
  OpIndex at = qkv.op;

  // The new entry joins the cache.
  const bool grows = moment.change != CacheChange::kOverwrite;
  if (grows && in_.stack->growth == CacheGrowth::kConcatLayer) {
    const auto concat = [&](std::string_view name, std::string_view copy,
                            std::optional<std::size_t>& tensor, std::string_view tensor_name,
                            Bytes before, Bytes after) {
      at = graph_.add({.name = name,
                       .family = OpFamily::kConcatCopy,
                       .bytes_read = static_cast<double>(after.count()),
                       .bytes_written = static_cast<double>(after.count()),
                       .dtype = dtype_},
                      {at});
      KVSIM_CHECK(after > before, "a longer copy of {} is not longer", tensor_name);
      replace(tensor, tensor_name, copy, Owner::kConcatCopy, after, at);
    };
    concat("concat keys", "longer copy of the keys", cache.keys, "keys", rows_.keys(moment.before),
           rows_.keys(moment.before + 1));
    if (!latent) {
      concat("concat values", "longer copy of the values", cache.values, "values",
             rows_.values(moment.before), rows_.values(moment.before + 1));
    }
  } else {
    at = graph_.add({.name = "cache append",
                     .family = OpFamily::kCacheWrite,
                     .bytes_read = traffic.append_write * batch,
                     .bytes_written = traffic.append_write * batch,
                     .dtype = dtype_},
                    {at});
    if (grows && !is_static) {
      drop(cache.keys, at - 1);
      cache.keys = hold_cache("keys", rows_.keys(moment.before + 1), at);
      if (!latent) {
        drop(cache.values, at - 1);
        cache.values = hold_cache("values", rows_.values(moment.before + 1), at);
      }
    }
  }
  qkv.op = at;
  at = attend_cache(qkv, moment, traffic);
  if (!keeps) {
    for (const auto& tensor : {qkv.q, qkv.k, qkv.v}) drop(tensor, at);
  }

  // The method's own bookkeeping and what it moves.
  const double side_read = traffic.side_read * batch;
  const double side_written = traffic.side_write * batch;
  if (in_.method->extra_launches() > 0 || side_read + side_written + traffic.extra_flops > 0) {
    at = graph_.add({.name = "method",
                     .family = OpFamily::kMethod,
                     .flops = FlopCount{traffic.extra_flops * batch},
                     .bytes_read = side_read,
                     .bytes_written = side_written,
                     .launches = in_.method->extra_launches(),
                     .dtype = Dtype::kFp32},
                    {at});
  }
  const double move_read = traffic.move_read * batch;
  const double move_written = traffic.move_write * batch;
  if (moment.change == CacheChange::kRewrite) {
    const auto gather = [&](std::string_view name, std::string_view copy,
                            std::optional<std::size_t>& tensor, std::string_view tensor_name,
                            Bytes after, double share) {
      at = graph_.add({.name = name,
                       .family = OpFamily::kCompaction,
                       .bytes_read = move_read * share,
                       .bytes_written = move_written * share,
                       .dtype = dtype_},
                      {at});
      if (!is_static) replace(tensor, tensor_name, copy, Owner::kCompaction, after, at);
    };
    gather("gather keys", "gathered keys", cache.keys, "keys", rows_.keys(moment.after),
           latent ? 1.0 : 0.5);
    if (!latent) {
      gather("gather values", "gathered values", cache.values, "values", rows_.values(moment.after),
             0.5);
    }
  } else if (move_read + move_written > 0) {
    at = graph_.add({.name = "evict and merge",
                     .family = OpFamily::kCompaction,
                     .bytes_read = move_read,
                     .bytes_written = move_written,
                     .dtype = dtype_},
                    {at});
  }
  if (side) {
    graph_.release(*side, at);
    graph_.hold("side data", Owner::kSideData, charged_bytes(*in_.stack, rows_.side(moment.after)),
                at + 1);
  }

  const std::int64_t width = static_cast<std::int64_t>(attention_.n_heads) * attention_.v_head_dim;
  at = gemm("output projection", m_, width, llm_.d_model, at);
  if (keeps) {
    for (const auto& tensor : {qkv.q, qkv.k, qkv.v}) drop(tensor, at);
    drop(normed_, at);
  }
  drop(attended_, at);
  attended_ = activation("attention block output", m_ * llm_.d_model, at);
  close(at);
  return std::move(graph_);
}

OpIndex LayerBuilder::attend_cache(const Projected& qkv, const DecodeMoment& moment,
                                   const StepTraffic& traffic) {
  const AttentionSpec& a = attention_;
  const auto batch = static_cast<double>(in_.batch);
  const auto attended = static_cast<double>(moment.attended);
  const std::int64_t q = m_ * a.n_heads * a.head_dim;
  const std::int64_t out = m_ * a.n_heads * a.v_head_dim;
  // Absorbed latent attention: every head scores and sums latent rows.
  const double score_width = a.is_latent() ? a.kv_lora_rank + a.rope_head_dim : a.head_dim;
  const double value_width = a.is_latent() ? a.kv_lora_rank : a.v_head_dim;
  const double per_width = 2 * batch * a.n_heads * attended;
  OpIndex at = qkv.op;

  double cache_read = traffic.attention_read * batch;
  std::optional<std::size_t> expanded;
  const std::int32_t stored = rows_.stored_heads();
  if (in_.stack->expands_kv_heads && !a.is_latent() && a.n_heads > stored) {
    const std::int64_t n = in_.batch * moment.attended * a.n_heads * (a.head_dim + a.v_head_dim);
    at = graph_.add({.name = "repeat keys and values",
                     .family = OpFamily::kExpandCopy,
                     .bytes_read = cache_read,
                     .bytes_written = size(n, dtype_),
                     .launches = 2,
                     .dtype = dtype_},
                    {at});
    expanded = graph_.hold("repeated keys and values", Owner::kKvExpansion,
                           charged_bytes(*in_.stack, bytes_of(n, dtype_)), at);
    cache_read = size(n, dtype_);
  }
  const double blocks = in_.stack->splits_keys ? 0.0 : batch * a.n_heads;
  if (in_.stack->attention == AttentionExec::kFused) {
    at = graph_.add({.name = "attention",
                     .family = OpFamily::kDecodeAttention,
                     .flops = FlopCount{per_width * (score_width + value_width)},
                     .bytes_read = cache_read + size(q, dtype_),
                     .bytes_written = size(out, dtype_),
                     .dtype = dtype_,
                     .blocks = blocks},
                    {at});
    attended_ = activation("attention output", out, at);
    drop(expanded, at);
    const double read = traffic.score_row_read * batch;
    const double written = traffic.score_row_write * batch;
    if (read + written > 0) {
      at = graph_.add({.name = "score row",
                       .family = OpFamily::kScorePass,
                       .bytes_read = read,
                       .bytes_written = written,
                       .dtype = Dtype::kFp32},
                      {at});
      graph_.release(
          graph_.hold("score row", Owner::kScores,
                      charged_bytes(*in_.stack, bytes_of(in_.batch * a.n_heads * moment.attended,
                                                         Dtype::kFp32)),
                      at),
          at);
    }
    return at;
  }

  const std::int64_t n = in_.batch * a.n_heads * moment.attended;
  const auto row = [&](std::string_view name, Dtype dtype, OpIndex since) {
    return graph_.hold(name, Owner::kScores, charged_bytes(*in_.stack, bytes_of(n, dtype)), since);
  };
  const double share = score_width / (score_width + value_width);
  at = graph_.add({.name = "attention scores",
                   .family = OpFamily::kDecodeAttention,
                   .flops = FlopCount{per_width * score_width},
                   .bytes_read = cache_read * share + size(q, dtype_),
                   .bytes_written = size(n, dtype_),
                   .dtype = dtype_},
                  {at});
  const std::size_t logits = row("attention scores", dtype_, at);
  at = graph_.add({.name = "softmax",
                   .family = OpFamily::kElementwise,
                   .bytes_read = size(n, dtype_),
                   .bytes_written = size(n, Dtype::kFp32),
                   .launches = 2,
                   .dtype = Dtype::kFp32},
                  {at});
  std::size_t weights = row("fp32 softmax", Dtype::kFp32, at);
  if (dtype_ != Dtype::kFp32) {
    at = graph_.add({.name = "softmax cast",
                     .family = OpFamily::kElementwise,
                     .bytes_read = size(n, Dtype::kFp32),
                     .bytes_written = size(n, dtype_),
                     .dtype = Dtype::kFp32},
                    {at});
    graph_.release(weights, at);
    weights = row("attention probabilities", dtype_, at);
  }
  graph_.release(logits, at);
  at = graph_.add({.name = "attention values",
                   .family = OpFamily::kDecodeAttention,
                   .flops = FlopCount{per_width * value_width},
                   .bytes_read = cache_read * (1 - share) + size(n, dtype_),
                   .bytes_written = size(out, dtype_),
                   .dtype = dtype_},
                  {at});
  attended_ = activation("attention output", out, at);
  graph_.release(weights, at);
  drop(expanded, at);
  return at;
}

/// One gated or plain block of `width` columns over `rows` rows.
OpIndex LayerBuilder::dense_block(const BlockSpec& block, OpIndex after) {
  const std::int64_t d = llm_.d_model;
  const std::int64_t n = block.rows * block.width;
  OpIndex at = gemm(mlp_.gated ? "gate projection" : "up projection", block.rows, d, block.width,
                    after, block.weight_share);
  const std::size_t gate = activation(mlp_.gated ? "gate" : "up", n, at);
  at = stream("activation function", OpFamily::kElementwise, n, n, at);
  graph_.release(gate, at);
  std::size_t product = activation("activated", n, at);
  if (mlp_.gated) {
    at = gemm("up projection", block.rows, d, block.width, at, block.weight_share);
    const std::size_t up = activation("up", n, at);
    at = stream("gate times up", OpFamily::kElementwise, 2 * n, n, at);
    graph_.release(product, at);
    graph_.release(up, at);
    product = activation("gate times up", n, at);
  }
  at = gemm("down projection", block.rows, block.width, d, at, block.weight_share);
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
  OpIndex at = gemm("router", m_, d, mlp_.n_experts, after);
  std::optional<std::size_t> shared;
  if (mlp_.shared_d_ff > 0) {
    at = dense_block({.rows = m_, .width = mlp_.shared_d_ff}, at);
    shared = activation("shared expert output", m_ * d, at);
  }
  const std::int64_t routed = m_ * mlp_.top_k;
  at = dense_block({.rows = routed, .width = mlp_.d_ff, .weight_share = expected_experts(mlp_, m_)},
                   at);
  const std::size_t parts = activation("expert outputs", routed * d, at);
  at = stream("combine experts", OpFamily::kElementwise, routed * d, m_ * d, at);
  graph_.release(parts, at);
  drop(shared, at);
  block_out_ = activation("feed-forward output", m_ * d, at);
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
  at = feed_forward(at);
  graph_.release(normed, at);
  at = stream("residual add", OpFamily::kElementwise, 2 * n, n, at);
  drop(block_out_, at);
  graph_.release(residual, at);
  if (keeps) drop(input_, at);
  (void)activation("layer output", n, at);
  return at;
}

}  // namespace kvsim
