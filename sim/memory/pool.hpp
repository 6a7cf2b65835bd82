#pragma once

#include <cstdint>
#include <optional>

#include "models/cost/step.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Prompts that a paged engine holds uncompressed simultaneously. It computes them in turn, chunk
/// by chunk: entries that a layer drops in the last chunk were written by earlier chunks.
struct PromptRows {
  std::int64_t sequences = 0;
  std::int64_t entries = 0;  // per stored head; 0: none, or the cache is not paged
};
[[nodiscard]] PromptRows prompt_rows(const CostInput& in, std::int64_t prompt);

/// Bytes of the pool that these prompts take in `layer` beyond `placed` entries per sequence. Rows
/// of formats are packed at the end of the prompt.
[[nodiscard]] Bytes prompt_rows_beyond(const CostInput& in, std::int32_t layer, std::int64_t prompt,
                                       std::int64_t placed);

/// The point at which a pool of cache blocks is exhausted.
struct PoolShortage {
  std::int64_t fitting = 0;  // tokens per sequence that it holds
  Bytes requested{};         // for one more token
};

/// Returns the shortage if `pool` cannot hold `in`'s batch at `tokens` tokens per sequence,
/// otherwise nullopt. If a chunked size law does not cover part of a prompt, its upper bound is
/// counted. Errors: InputError if the method's size depends on data.
[[nodiscard]] std::optional<PoolShortage> pool_shortage(const CostInput& in, std::int64_t tokens,
                                                        Bytes pool);

}  // namespace kvsim
