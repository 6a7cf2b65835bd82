#pragma once

#include <memory>
#include <span>

#include "models/cost/iteration/mixed.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"

namespace kvsim {

/// Source of an engine's iteration times. Not thread-safe.
class IterationCost {
 public:
  virtual ~IterationCost() = default;
  [[nodiscard]] virtual MixedCost cost(const MixedStep& step) = 0;
  /// Layer classes of MixedStep::loads.
  [[nodiscard]] virtual std::span<const LayerSpan> layer_classes() const = 0;
};

/// MixedStepCost of an engine's GPU. Objects that `in` and `roofline` point to must outlive it.
[[nodiscard]] std::unique_ptr<IterationCost> mixed_iteration_cost(const CostInput& in,
                                                                  const Roofline& roofline);
/// Likewise, for one stage of a pipeline.
[[nodiscard]] std::unique_ptr<IterationCost> mixed_iteration_cost(const CostInput& in,
                                                                  const Roofline& roofline,
                                                                  const LayerRange& layers);

}  // namespace kvsim
