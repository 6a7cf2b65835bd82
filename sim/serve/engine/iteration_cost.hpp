#pragma once

#include <memory>
#include <span>

#include "models/cost/iteration/mixed.hpp"
#include "sim/serve/cache/sequence_footprint.hpp"

namespace kvsim {

/// Where an engine's times come from. Not for several threads at once.
class IterationCost {
 public:
  virtual ~IterationCost() = default;
  [[nodiscard]] virtual MixedCost cost(const MixedStep& step) = 0;
  /// Of MixedStep::loads.
  [[nodiscard]] virtual std::span<const LayerSpan> layer_classes() const = 0;
};

/// MixedStepCost of an engine's GPU. What `in` and `roofline` point to outlives it.
[[nodiscard]] std::unique_ptr<IterationCost> mixed_iteration_cost(const CostInput& in,
                                                                  const Roofline& roofline);
/// Likewise, of one stage of a pipeline.
[[nodiscard]] std::unique_ptr<IterationCost> mixed_iteration_cost(const CostInput& in,
                                                                  const Roofline& roofline,
                                                                  const LayerRange& layers);

}  // namespace kvsim
