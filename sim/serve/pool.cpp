#include "sim/serve/pool.hpp"

#include <algorithm>

namespace kvsim {

std::optional<PoolShortage> pool_shortage(const CostInput& in, std::int64_t tokens, Bytes pool) {
  const auto needed = [&](std::int64_t n) {
    const std::int64_t prompt = std::min(in.prompt, n);
    Bytes sum;
    for (std::int32_t l = 0; l < in.llm->n_layers(); ++l) {
      sum +=
          layer_cache(in, l,
                      std::max(held_entries(in, l, prompt, prompt), held_entries(in, l, prompt, n)))
              .total();
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
