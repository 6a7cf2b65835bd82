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

/// Real memory over predicted: 90 % of cases in [low, high], low <= 1 <= high.
struct MemoryResidual {
  double low = 1;
  double high = 1;
  bool without_cache = false;  // of all but the cache, whose blocks are counted
  std::string basis;
};
/// An engine's, or PyTorch's; nullopt: the stack's memory is a bound that nothing was held against.
[[nodiscard]] std::optional<MemoryResidual> memory_residual(const Stack& stack);

/// The peak of a run that holds `cache` bytes of cache then.
[[nodiscard]] BytesInterval peak_interval(const MemoryResidual& residual, Bytes peak, Bytes cache);

/// A paged engine's pool where the rest of its memory takes as much as is likely at most, and as
/// little. What was measured and given to the run has no spread.
struct PoolInterval {
  Bytes low, high;
  std::int64_t blocks_low = 0, blocks_high = 0;
  std::int64_t tokens_low = 0, tokens_high = 0;
  Bytes peak_low, peak_high;  // of all that stands: the rest and the pool beside it, within limit()
  std::string basis;
};
[[nodiscard]] PoolInterval pool_interval(const EngineStartup& startup, const Stack& stack,
                                         const StackOptions& measured);

/// `gpu` with the memory in which a run as predicted fits where on `gpu` one fits that takes
/// `factor` times the predicted: more for factors below 1, less above. `startup`: of the run, for a
/// residual of all but the cache.
[[nodiscard]] Gpu with_memory_for(const Gpu& gpu, const MemoryResidual& residual, double factor,
                                  const std::optional<EngineStartup>& startup);

/// The interval of `sum`, the time of steps of which `some` are known: as theirs, relative to their
/// time. nullopt where one of them has none, or there are none.
[[nodiscard]] std::optional<Interval> sum_interval(Seconds sum, std::span<const Step> some,
                                                   const Roofline& roofline);
/// What the intervals of such steps rest on, or why there are none, for people.
[[nodiscard]] std::string time_basis(std::span<const Step> some, const Roofline& roofline,
                                     const Stack& stack);

}  // namespace kvsim
