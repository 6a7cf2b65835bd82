#include "models/llm/llm.hpp"

#include <algorithm>

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

/// Matrices of one feed-forward block of width `d_ff`: up and down, and the gate if there is one.
std::int64_t block_parameters(const Llm& llm, const MlpSpec& mlp, std::int64_t d_ff) {
  return product((mlp.gated ? 3 : 2) * std::int64_t{llm.d_model}, d_ff);
}

}  // namespace

std::int64_t attention_parameters(const Llm& llm, const AttentionSpec& attention) {
  const std::int64_t d = llm.d_model;
  const std::int64_t heads = attention.n_heads;
  const std::int64_t q_width = heads * attention.head_dim;
  const std::int64_t out = heads * attention.v_head_dim * d;
  if (!attention.is_latent()) {
    return d * q_width + d * attention.n_kv_heads * (attention.head_dim + attention.v_head_dim) +
           out;
  }
  const std::int64_t query =
      attention.q_lora_rank > 0 ? (d + q_width) * attention.q_lora_rank : d * q_width;
  const std::int64_t nope = attention.head_dim - attention.rope_head_dim;
  const std::int64_t down = d * (attention.kv_lora_rank + attention.rope_head_dim);
  const std::int64_t up = attention.kv_lora_rank * heads * (nope + attention.v_head_dim);
  return query + down + up + out;
}

std::int64_t mlp_parameters(const Llm& llm, const MlpSpec& mlp) {
  if (mlp.n_experts == 0) return block_parameters(llm, mlp, mlp.d_ff);
  const std::int64_t router = std::int64_t{llm.d_model} * mlp.n_experts;
  const std::int64_t routed = product(mlp.n_experts, block_parameters(llm, mlp, mlp.d_ff));
  return sum(sum(routed, block_parameters(llm, mlp, mlp.shared_d_ff)), router);
}

std::int64_t active_mlp_parameters(const Llm& llm, const MlpSpec& mlp) {
  if (mlp.n_experts == 0) return mlp_parameters(llm, mlp);
  MlpSpec visited = mlp;
  visited.n_experts = mlp.top_k;
  // The router scores every expert, also those the token does not visit.
  return mlp_parameters(llm, visited) + std::int64_t{llm.d_model} * (mlp.n_experts - mlp.top_k);
}

std::int64_t parameters(const Llm& llm) {
  const std::int64_t d = llm.d_model;
  std::int64_t total = d * llm.vocab_size * (llm.tied_embeddings ? 1 : 2);
  total = sum(total, d * llm.learned_positions);
  total = sum(total, llm.extra_parameters);
  for (const LayerSpec& layer : llm.layers) {
    total = sum(total, attention_parameters(llm, layer.attention));
    total = sum(total, mlp_parameters(llm, layer.mlp));
  }
  return total;
}

std::int64_t active_parameters(const Llm& llm) {
  // The output head is multiplied with whether or not it shares the embedding's storage.
  std::int64_t total = std::int64_t{llm.d_model} * llm.vocab_size;
  for (const LayerSpec& layer : llm.layers) {
    total = sum(total, attention_parameters(llm, layer.attention));
    total = sum(total, active_mlp_parameters(llm, layer.mlp));
  }
  return total;
}

std::int64_t kv_elements_per_token(const AttentionSpec& attention) {
  if (attention.is_latent()) return attention.kv_lora_rank + attention.rope_head_dim;
  return std::int64_t{attention.n_kv_heads} * (attention.head_dim + attention.v_head_dim);
}

Bytes full_cache_bytes(const Llm& llm, std::int64_t tokens, Dtype kv_dtype) {
  KVSIM_CHECK(tokens >= 0, "a cache of {} tokens", tokens);
  std::int64_t elements = 0;
  for (const LayerSpec& layer : llm.layers) {
    const std::int32_t window = layer.attention.window;
    const std::int64_t held = window > 0 ? std::min<std::int64_t>(tokens, window) : tokens;
    elements = sum(elements, product(held, kv_elements_per_token(layer.attention)));
  }
  (void)product(elements, bits_of(kv_dtype) + 1);  // bytes_of multiplies without looking
  return bytes_of(elements, kv_dtype);
}

Bytes weight_bytes(const Llm& llm, Dtype dtype) {
  const std::int64_t count = parameters(llm);
  (void)product(count, bits_of(dtype) + 1);
  return bytes_of(count, dtype);
}

std::int64_t routed_expert_parameters(const Llm& llm) {
  std::int64_t routed = 0;
  for (const LayerSpec& layer : llm.layers) {
    if (layer.mlp.n_experts > 0) {
      routed = sum(routed,
                   product(layer.mlp.n_experts, block_parameters(llm, layer.mlp, layer.mlp.d_ff)));
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
  return loaded_weight_bytes(llm, llm.published_dtype);
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
