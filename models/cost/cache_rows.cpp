#include "models/cost/cache_rows.hpp"

#include <algorithm>
#include <cmath>

namespace kvsim {

CacheRows::CacheRows(const CostInput& in, std::int32_t layer) : in_{in}, layer_{layer} {
  const LayerSpec& spec = in.llm->layers[static_cast<std::size_t>(layer)];
  const AttentionSpec& attention = spec.attention;
  const AttentionWork work = attention_work(attention);
  items_ = items_without_rows(spec, in.kv_dtype);
  latent_ = work.is_latent;
  context_ranks_ = work.context_ranks;
  dtype_ = in.kv_dtype;
  if (work.rows == 0) return;
  shape_ = {
      .n_heads = attention.n_heads, .n_kv_heads = work.rows, .head_dim = work.row_width() / 2};
  stored_heads_ = latent_ ? 1 : in.method->stored_heads(shape_);
  dtype_ = in.method->store_dtype(in.kv_dtype);
  if (!work.holds_rows) return;
  key_elements_ = static_cast<std::int64_t>(stored_heads_) * work.key_width;
  value_elements_ = static_cast<std::int64_t>(stored_heads_) * work.row_value_width;
  plain_ = in.method->plain_rows();
  if (!plain_ && in.prompt > 0) {
    prompt_entries_ = in.method->entries_held(layer, in.prompt, in.prompt).value_or(in.prompt);
  }
}

std::int64_t CacheRows::of_prompt(std::int64_t entries) const {
  return prompt_entries_ > 0 ? std::min(prompt_entries_, entries) : entries;
}

CacheBytes CacheRows::stored(std::int64_t entries) const {
  return in_.method->rows_bytes(layer_, shape_, in_.kv_dtype, of_prompt(here(entries)),
                                here(entries));
}

Bytes CacheRows::keys(std::int64_t entries) const {
  if (plain_) return bytes_of(in_.batch * here(entries) * key_elements_, dtype_);
  const Bytes both = stored(entries).kv * in_.batch;
  return latent_ ? both : Bytes{both.count() - both.count() / 2};
}
Bytes CacheRows::values(std::int64_t entries) const {
  if (plain_) return bytes_of(in_.batch * here(entries) * value_elements_, dtype_);
  return latent_ ? Bytes{} : Bytes{(stored(entries).kv * in_.batch).count() / 2};
}

Product CacheRows::row_size(std::int64_t entries, std::int64_t elements, Product start) const {
  start.times(in_.batch, "batch").times(here(entries), "entries");
  if (latent_ || stored_heads_ == 0) return start.times(elements).in(dtype_);
  return start.times(stored_heads_, "heads").times(elements / stored_heads_).in(dtype_);
}
Product CacheRows::keys_size(std::int64_t entries, Product start) const {
  return plain_ ? row_size(entries, key_elements_, start) : start.in_bytes(keys(entries));
}
Product CacheRows::values_size(std::int64_t entries, Product start) const {
  return plain_ ? row_size(entries, value_elements_, start) : start.in_bytes(values(entries));
}
Product CacheRows::side_size(std::int64_t entries, Product start) const {
  const Bytes all = side(entries);
  const Bytes one = entries > 1 ? side(1) : all;
  start.times(in_.batch, "batch");
  if (stored_heads_ > 0 && entries > 0 && one.count() % (in_.batch * stored_heads_) == 0 &&
      one * entries == all) {
    const std::int64_t each = one.count() / in_.batch / stored_heads_;
    return start.times(stored_heads_, "heads").times(entries, "entries").in_bytes(Bytes{each});
  }
  return start.in_bytes(Bytes{all.count() / in_.batch});
}
Product CacheRows::other_size(std::int64_t entries, Product start) const {
  return start.times(in_.batch, "batch").in_bytes(Bytes{other(entries).count() / in_.batch});
}

Bytes CacheRows::side_of_method(std::int64_t entries) const {
  if (key_elements_ == 0) return {};
  const Bytes one =
      in_.method->side_bytes(layer_, shape_, in_.kv_dtype, of_prompt(here(entries)), here(entries));
  return one * in_.batch;
}

Bytes CacheRows::other(std::int64_t entries) const {
  double one = 0;
  for (const CacheItem& item : items_) one += item.held(entries);
  return Bytes{static_cast<std::int64_t>(std::ceil(one)) * in_.batch};
}

bool CacheRows::other_is_line() const {
  const std::int64_t start = other(1).count();
  const std::int64_t each = other(2).count() - start;
  for (const std::int64_t n : {3, 64, 1000, 1777, 1 << 30}) {
    if (other(n).count() != start + (n - 1) * each) return false;
  }
  return true;
}

void CacheRows::fit_side_bytes() {
  if (!plain_) return;
  constexpr std::int64_t kFar = 1 << 30;
  if (key_elements_ == 0) return;
  const auto one = [&](std::int64_t n) {  // one sequence: a batch of kFar entries would overflow
    return in_.method->side_bytes(layer_, shape_, in_.kv_dtype, n, n).count();
  };
  const std::int64_t start = one(0);
  const std::int64_t each = one(1) - start;
  for (const std::int64_t n : {std::int64_t{64}, std::int64_t{1000}, std::int64_t{1777}, kFar}) {
    if (one(n) != start + n * each) return;
  }
  side_is_line_ = true;
  side_start_ = start * in_.batch;
  side_each_ = each * in_.batch;
}

LayerCache CacheRows::cache(std::int64_t entries) const {
  std::int64_t n = entries;
  if (in_.stack->growth == CacheGrowth::kPaged) {
    const std::int64_t block = in_.stack->block_tokens;
    n = (entries + block - 1) / block * block;
  }
  if (!plain_) {  // evaluate the method once for all
    const CacheBytes one = stored(n);
    LayerCache out = rows_of(one);
    out.side = allocator_rounded(in_, one.side * in_.batch);
    out.other = allocator_rounded(in_, other(n));
    return out;
  }
  LayerCache out = rows(n);
  out.side = allocator_rounded(in_, side(n));
  out.other = allocator_rounded(in_, other(n));
  return out;
}

LayerCache CacheRows::rows_of(const CacheBytes& one) const {
  const std::int64_t both = (one.kv * in_.batch).count();
  const std::int64_t values = latent_ ? 0 : both / 2;
  return {.keys = allocator_rounded(in_, Bytes{both - values}),
          .values = allocator_rounded(in_, Bytes{values}),
          .side = {},
          .other = {}};
}

LayerCache CacheRows::rows(std::int64_t entries) const {
  if (!plain_) return rows_of(stored(entries));
  return {.keys = allocator_rounded(in_, keys(entries)),
          .values = allocator_rounded(in_, values(entries)),
          .side = {},
          .other = {}};
}

LayerCache CacheRows::cache_after_step(const DecodeState& moment) const {
  if (in_.stack->growth != CacheGrowth::kConcatAll || !plain_) return {};
  return rows(moment.before);
}

}  // namespace kvsim
