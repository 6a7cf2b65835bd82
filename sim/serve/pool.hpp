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

/// Whether `pool` lacks blocks for `in`'s batch at `tokens` tokens a sequence, and where; nullopt
/// if it does not. Errors: InputError where the method's size depends on data.
[[nodiscard]] std::optional<PoolShortage> pool_shortage(const CostInput& in, std::int64_t tokens,
                                                        Bytes pool);

}  // namespace kvsim
