#pragma once

// Parts of a service that tests replace or observe.

#include <functional>
#include <memory>

#include "sim/serve/engine/continuous_engine.hpp"

namespace kvsim {

struct ServeHooks {
  /// Stands in for mixed_iteration_cost.
  std::function<std::unique_ptr<IterationCost>(const CostInput&, const Roofline&)> cost{};
  /// Stands in for the cost of a pipeline's stage, where there are several.
  std::function<std::unique_ptr<IterationCost>(const CostInput&, const Roofline&,
                                               const LayerRange&)>
      stage_cost{};
  /// Stands in for the scheduler that the spec names.
  std::function<std::unique_ptr<Scheduler>(const SchedulerSpec&, const SchedulerSite&)> scheduler{};
  ServeObserver* observer = nullptr;  // outlives the run
};

}  // namespace kvsim
