#pragma once

#include <cstdint>
#include <optional>

#include "models/units/units.hpp"
#include "sim/memory/vllm_startup.hpp"

namespace kvsim {

struct StaticSpec;

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

/// `startup`: the run's, of a paged engine. Costs some tens of evaluations of a point's memory.
/// Errors: as run_static.
[[nodiscard]] FitRange fit_range(const StaticSpec& spec,
                                 const std::optional<EngineStartup>& startup);

}  // namespace kvsim
