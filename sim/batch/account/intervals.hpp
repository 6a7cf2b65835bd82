#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "models/cost/rates/roofline.hpp"
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

/// The 90 % intervals of a run's metrics and their basis. An unknown interval is absent; otherwise
/// low <= metric <= high.
struct RunIntervals {
  std::optional<Interval> prefill;  // of the times, if the run has them
  std::optional<Interval> decode;
  std::string time_basis;
  std::optional<BytesInterval> peak;  // of runs that fit
  /// Tokens per sequence when memory runs out, at the high and at the low end of the run's memory;
  /// absent: it does not run out at that end. find_oom_range sets both.
  std::optional<std::int64_t> oom_low;
  std::optional<std::int64_t> oom_high;
  std::string memory_basis;
};

/// The largest batch with which a run of this model, prompt and output fits, and the fewest GPUs on
/// which the run itself fits: as predicted, and at the high and low ends of its memory
/// (`memory_ends`). Assumes that a larger batch does not fit if a smaller one does not, and that
/// fewer GPUs do not suffice if more do not.
struct FitRange {
  static constexpr std::int64_t kMaxBatch = 1 << 16;
  static constexpr std::int32_t kMaxGpus = 64;
  /// 0: not even one sequence fits; kMaxBatch: the largest batch tried. Ends are absent if the
  /// error of predicted memory is unknown.
  std::int64_t batch = 0;
  std::optional<std::int64_t> batch_low, batch_high;
  /// Tensor-parallel ranks, among the counts that divide the model's heads and columns evenly;
  /// nullopt: it does not fit on kMaxGpus of them.
  std::optional<std::int32_t> gpus, gpus_low, gpus_high;
};

/// A paged engine's pool with the uncertain terms of its start-up at their highest and lowest
/// values (pool_interval of memory_end.hpp). Measured terms have no spread.
struct PoolInterval {
  Bytes low, high;
  std::int64_t blocks_low = 0, blocks_high = 0;
  std::int64_t tokens_low = 0, tokens_high = 0;
  Bytes peak_low, peak_high;  // of all allocations: the pool and the rest, within limit()
  std::string basis;
};

/// The basis of the steps' intervals, or the reason why there are none, as text.
[[nodiscard]] std::string time_basis(std::span<const Step> some, const Roofline& roofline,
                                     const Stack& stack);

}  // namespace kvsim
