#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "models/cost/roofline.hpp"
#include "models/cost/step.hpp"
#include "models/gpu/gpu.hpp"
#include "models/stack/stack.hpp"
#include "models/units/units.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

struct BytesInterval {
  Bytes low;
  Bytes high;
};

/// Where 90 % of cases lie about a run's figures, and what says so. An interval that nothing says
/// is absent; of those there are, low <= figure <= high.
struct RunIntervals {
  std::optional<Interval> prefill;  // of the times, where the run has them
  std::optional<Interval> decode;
  std::string time_basis;
  std::optional<BytesInterval> peak;  // of runs that fit
  /// Tokens per sequence when memory runs out, where the run takes as much of it as is likely at
  /// most, and as little; absent: it does not run out then.
  std::optional<std::int64_t> oom_low;
  std::optional<std::int64_t> oom_high;
  std::string memory_basis;
};

/// A paged engine's pool with the uncertain terms of its start at their highest and lowest
/// (pool_interval of memory_end.hpp). Measured terms have no spread.
struct PoolInterval {
  Bytes low, high;
  std::int64_t blocks_low = 0, blocks_high = 0;
  std::int64_t tokens_low = 0, tokens_high = 0;
  Bytes peak_low, peak_high;  // of all that is held: the rest and the pool, within limit()
  std::string basis;
};

/// What the intervals of steps rest on, or why there are none, for people.
[[nodiscard]] std::string time_basis(std::span<const Step> some, const Roofline& roofline,
                                     const Stack& stack);

}  // namespace kvsim
