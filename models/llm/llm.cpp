#include "models/llm/llm.hpp"

#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "models/llm/layer/layer_kind.hpp"
#include "models/llm/weight_format.hpp"
#include "models/units/check.hpp"

namespace kvsim {
namespace {

std::int64_t product(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  KVSIM_CHECK(!__builtin_mul_overflow(a, b, &out), "{} x {} overflows", a, b);
  return out;
}

std::int64_t sum(std::int64_t a, std::int64_t b) {
  std::int64_t out = 0;
  KVSIM_CHECK(!__builtin_add_overflow(a, b, &out), "{} + {} overflows", a, b);
  return out;
}

/// Returns the parameters of all matrices of a list, or of those that one token visits.
std::int64_t total(const std::vector<LayerMatrix>& matrices, bool is_visited) {
  std::int64_t out = 0;
  for (const LayerMatrix& m : matrices) {
    out = sum(out, product(product(m.in, m.out), is_visited ? m.visited : m.count));
  }
  return out;
}

}  // namespace

std::int64_t mixer_parameters(const Llm& llm, const LayerSpec& layer) {
  return total(mixer_matrices(layer, llm.d_model), false);
}

std::int64_t mlp_parameters(const Llm& llm, const MlpSpec& mlp) {
  return total(feed_forward_matrices(mlp, llm.d_model), false);
}

std::int64_t active_mlp_parameters(const Llm& llm, const MlpSpec& mlp) {
  // The router scores every expert, including those that the token does not visit.
  return total(feed_forward_matrices(mlp, llm.d_model), true);
}

std::int64_t parameters(const Llm& llm) {
  const std::int64_t d = llm.d_model;
  std::int64_t total = llm.is_draft_head ? 0 : d * llm.vocab_size * (llm.tied_embeddings ? 1 : 2);
  total = sum(total, d * llm.learned_positions);
  total = sum(total, llm.extra_parameters);
  for (const LayerSpec& layer : llm.layers) {
    total = sum(total, mixer_parameters(llm, layer));
    total = sum(total, mlp_parameters(llm, layer.mlp));
  }
  return total;
}

std::int64_t active_parameters(const Llm& llm) {
  // The output head is multiplied with even if it shares the embedding's storage.
  std::int64_t total = std::int64_t{llm.d_model} * llm.vocab_size + llm.extra_active_parameters;
  for (const LayerSpec& layer : llm.layers) {
    total = sum(total, mixer_parameters(llm, layer));
    total = sum(total, active_mlp_parameters(llm, layer.mlp));
  }
  return total;
}

std::int64_t kv_elements_per_token(const AttentionSpec& attention) {
  const AttentionWork work = attention_work(attention);
  return work.holds_rows ? work.cached_elements() : 0;
}

Bytes recorded_bytes(const AttentionSpec& attention, std::int64_t tokens, Dtype kv_dtype) {
  const std::int64_t here = attention_work(attention).held_here(tokens);
  return bytes_of(here * kv_elements_per_token(attention), kv_dtype);
}

Bytes full_cache_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype) {
  KVSIM_CHECK(tokens >= 0, "a cache of {} tokens", tokens);
  double bytes = 0;
  for (const LayerSpec& layer : llm.layers) {
    for (const CacheItem& item : cache_items(layer, kv_dtype)) bytes += item.held(tokens);
  }
  constexpr double kLargestExact = 9007199254740992;  // 2^53
  KVSIM_CHECK(bytes < kLargestExact, "a cache of {} bytes", bytes);
  return Bytes{static_cast<std::int64_t>(std::ceil(bytes))};
}

Bytes weight_bytes(const Llm& llm, Dtype dtype) {
  const std::int64_t count = parameters(llm);
  (void)product(count, bits_of(dtype) + 1);
  return bytes_of(count, dtype);
}

std::int64_t routed_expert_parameters(const Llm& llm) {
  std::int64_t routed = 0;
  for (const LayerSpec& layer : llm.layers) {
    for (const LayerMatrix& m : feed_forward_matrices(layer.mlp, llm.d_model)) {
      if (m.part == WeightPart::kExperts) routed = sum(routed, product(m.in * m.out, m.count));
    }
  }
  return routed;
}

std::int64_t mxfp4_scales(std::int64_t values) {
  constexpr std::int64_t kValuesPerScale = 32;  // OCP Microscaling Formats 1.0, section 5.2
  return (values + kValuesPerScale - 1) / kValuesPerScale;
}

Dtype dense_weight_dtype(const Llm& llm, Dtype dtype) {
  if (dtype != llm.published_dtype) return dtype;
  if (llm.unpacked_dtype) return *llm.unpacked_dtype;
  return llm.outside_experts_dtype.value_or(dtype);
}

Bytes expert_weight_bytes(const Llm& llm, std::int64_t values, Dtype dtype) {
  const bool has_scales = llm.outside_experts_dtype && dtype == llm.published_dtype;
  return bytes_of(values, dtype) + Bytes{has_scales ? mxfp4_scales(values) : 0};
}

Bytes loaded_weight_bytes(const Llm& llm, Dtype dtype) {
  if (llm.unpacked_dtype && dtype == llm.published_dtype) {
    return loaded_weight_bytes(llm, WeightStore{.base = dtype, .format = nullptr});
  }
  const Dtype dense = dense_weight_dtype(llm, dtype);
  if (dense == dtype) return weight_bytes(llm, dtype);
  const std::int64_t routed = routed_expert_parameters(llm);
  return expert_weight_bytes(llm, routed, dtype) + bytes_of(parameters(llm) - routed, dense);
}

Bytes published_weight_bytes(const Llm& llm) {
  return loaded_weight_bytes(llm, llm.published_dtype) + Bytes{llm.extra_bytes};
}

Dtype wide_dtype(const Llm& llm, Dtype weight_dtype) {
  if (bits_of(weight_dtype) >= 16) return weight_dtype;
  return bits_of(llm.compute_dtype) == 16 ? llm.compute_dtype : Dtype::kBf16;
}

Dtype default_kv_dtype(const Llm& llm, Dtype weight_dtype) {
  if (llm.published_kv_dtype && weight_dtype == llm.published_dtype) return *llm.published_kv_dtype;
  return wide_dtype(llm, weight_dtype);
}

}  // namespace kvsim
