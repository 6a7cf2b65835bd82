#pragma once

#include <cstdint>
#include <optional>

#include "models/gpu/gpu.hpp"
#include "models/units/units.hpp"
#include "validation/e2e/plan.hpp"

namespace kvsim {

/// The prediction of a run of the loop on a GPU with the stack kvsim-kernels.
struct E2ePrediction {
  double tok_s = 0;  // of the batch, mean of all decode steps; without prefill
  Bytes peak;        // of decoding: context, weights, cache, activations
  Bytes usable;      // of the GPU
  /// Longest sequence, in tokens, whose decode step fits with this batch; nullopt: the method's
  /// budget bounds the cache, so that there is no limit.
  std::optional<std::int64_t> longest;
};

/// Upper limit of the search for the longest sequence.
inline constexpr std::int64_t kMaxE2eTokens = std::int64_t{1} << 24;

/// `plan` need not fit. Errors: as for run_static.
[[nodiscard]] E2ePrediction predict_e2e(const E2ePlan& plan, const Gpu& gpu);

}  // namespace kvsim
