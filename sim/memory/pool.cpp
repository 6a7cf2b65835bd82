#include "sim/memory/pool.hpp"

#include <algorithm>

#include "models/llm/layer/layer_kind.hpp"

namespace kvsim {

PromptRows prompt_rows(const CostInput& in, std::int64_t prompt) {
  if (in.stack->growth != CacheGrowth::kPaged) return {};
  const std::int64_t rows = rows_at_once(in, prompt);
  const std::int64_t sequences = std::clamp(rows / prompt, std::int64_t{1}, in.batch);
  const std::int64_t chunk = std::min(rows, prompt);
  const bool whole = in.method->prefill_peak() == PrefillPeak::kAllLayers;
  return {.sequences = sequences, .entries = whole ? prompt : (prompt - 1) / chunk * chunk};
}

Bytes prompt_rows_beyond(const CostInput& in, std::int32_t layer, std::int64_t prompt,
                         std::int64_t placed) {
  const PromptRows rows = prompt_rows(in, prompt);
  const LayerSpec& spec = in.llm->layers[static_cast<std::size_t>(layer)];
  const std::int64_t entries = within_limit(held_limit(*in.stack, spec.attention), rows.entries);
  if (entries == 0 || !caches_rows(spec)) return {};
  CostInput some = in;
  some.batch = rows.sequences;
  const auto beyond = [&](Bytes whole) {
    return std::max(Bytes{}, whole - layer_cache(some, layer, placed).kv());
  };
  if (in.method->plain_rows() || in.method->fixed_rows()) {
    return entries <= placed ? Bytes{} : beyond(layer_cache(some, layer, entries).kv());
  }
  const std::int64_t block = in.stack->block_tokens;
  return beyond(recorded_bytes(spec.attention, (entries + block - 1) / block * block, in.kv_dtype) *
                rows.sequences);
}

std::optional<PoolShortage> pool_shortage(const CostInput& in, std::int64_t tokens, Bytes pool) {
  // A law may cover the whole prompt but not a part of it (whole chunks only). The part then keeps
  // as many entries as possible, at most those of the whole prompt.
  const auto held = [&](std::int32_t layer, std::int64_t prompt, std::int64_t n) {
    if (prompt == in.prompt || in.method->entries_held(layer, prompt, n)) {
      return held_entries(in, layer, prompt, n);
    }
    return std::min(n, held_entries(in, layer, in.prompt, in.prompt));
  };
  const auto needed = [&](std::int64_t n) {
    const std::int64_t prompt = std::min(in.prompt, n);
    Bytes sum;
    for (std::int32_t l = 0; l < in.llm->n_layers(); ++l) {
      const std::int64_t max = std::max(held(l, prompt, prompt), held(l, prompt, n));
      sum += layer_cache(in, l, max).total() + prompt_rows_beyond(in, l, prompt, max);
    }
    return sum;
  };
  if (needed(tokens) <= pool) return std::nullopt;
  std::int64_t fits = 0;
  for (std::int64_t end = tokens; end - fits > 1;) {
    const std::int64_t middle = fits + (end - fits) / 2;
    (needed(middle) <= pool ? fits : end) = middle;
  }
  return PoolShortage{.fitting = fits, .requested = needed(fits + 1)};
}

}  // namespace kvsim
