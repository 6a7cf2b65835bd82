#include "models/cost/cache_rows.hpp"

namespace kvsim {

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

}  // namespace kvsim
