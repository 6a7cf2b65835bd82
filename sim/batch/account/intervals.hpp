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
  std::optional<Interval> prefill;  // of the times, where the run has them
  std::optional<Interval> decode;
  std::string time_basis;
  std::optional<BytesInterval> peak;  // of runs that fit
  /// Tokens per sequence when memory runs out, where the run takes as much of it as is likely at
  /// most, and as little; absent: it does not run out then. find_oom_range sets both.
  std::optional<std::int64_t> oom_low;
  std::optional<std::int64_t> oom_high;
  std::string memory_basis;
};

/// The largest batch with which a run of this model, prompt and output fits, and the fewest GPUs on
/// which the run itself does: as predicted, and where it takes the most memory that is likely and
/// the least (`memory_ends`). A larger batch is taken never to fit where a smaller one does
/// not, and fewer GPUs not where more do not.
struct FitRange {
  static constexpr std::int64_t kMostBatch = 1 << 16;
  static constexpr std::int32_t kMostGpus = 64;
  /// 0: not one sequence fits; kMostBatch: as many as were tried. Ends are absent where nothing
  /// says how far memory may be from what is predicted.
  std::int64_t batch = 0;
  std::optional<std::int64_t> batch_low, batch_high;
  /// Tensor-parallel ranks, of the counts that share the model's heads and columns evenly; nullopt:
  /// it does not fit on kMostGpus of them.
  std::optional<std::int32_t> gpus, gpus_low, gpus_high;
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

/// The basis of the steps' intervals, or the reason why there are none, as text.
[[nodiscard]] std::string time_basis(std::span<const Step> some, const Roofline& roofline,
                                     const Stack& stack);

}  // namespace kvsim
