#pragma once

#include <cstdint>
#include <optional>

#include "models/cost/step.hpp"
#include "models/units/units.hpp"

namespace kvsim {

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
