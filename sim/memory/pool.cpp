#include "sim/memory/pool.hpp"

#include <algorithm>

namespace kvsim {

std::optional<PoolShortage> pool_shortage(const CostInput& in, std::int64_t tokens, Bytes pool) {
  // Of a part of the prompt a law may know nothing where it knows the whole (whole chunks of it):
  // it then keeps as much as it can, and no more than of the whole.
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
      sum += layer_cache(in, l, max).total();
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
