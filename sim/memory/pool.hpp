#pragma once

#include <cstdint>
#include <optional>

#include "models/cost/step.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Prompts that a paged engine holds uncompressed at once. It computes them in turn, a chunk at a
/// time: what a layer drops in the last chunk was written by those before it.
struct PromptRows {
  std::int64_t sequences = 0;
  std::int64_t entries = 0;  // per stored head; 0: none, also where the cache is not paged
};
[[nodiscard]] PromptRows prompt_rows(const CostInput& in, std::int64_t prompt);

/// Bytes of the pool that these prompts take in `layer` beyond `placed` entries of each sequence.
/// Rows of formats are packed at the end of the prompt.
[[nodiscard]] Bytes prompt_rows_beyond(const CostInput& in, std::int32_t layer, std::int64_t prompt,
                                       std::int64_t placed);

/// Where a pool of cache blocks is exhausted.
struct PoolShortage {
  std::int64_t fitting = 0;  // tokens of each sequence that it holds
  Bytes requested{};         // for one token more
};

/// Returns the shortage if `pool` cannot hold `in`'s batch at `tokens` tokens per sequence, nullopt
/// if it can. Where a chunked size law does not cover part of a prompt, its upper bound is counted.
/// Errors: InputError if the method's size depends on data.
[[nodiscard]] std::optional<PoolShortage> pool_shortage(const CostInput& in, std::int64_t tokens,
                                                        Bytes pool);

}  // namespace kvsim
