#pragma once

// Parts of a service that tests replace or observe.

#include <functional>
#include <memory>

#include "sim/serve/engine/continuous_engine.hpp"

namespace kvsim {

struct ServeHooks {
  /// Replaces mixed_iteration_cost.
  std::function<std::unique_ptr<IterationCost>(const CostInput&, const Roofline&)> cost{};
  /// Replaces the cost of a pipeline's stage, if there are several.
  std::function<std::unique_ptr<IterationCost>(const CostInput&, const Roofline&,
                                               const LayerRange&)>
      stage_cost{};
  /// Replaces the scheduler that the spec names.
  std::function<std::unique_ptr<Scheduler>(const SchedulerSpec&, const SchedulerContext&)>
      scheduler{};
  ServeObserver* observer = nullptr;  // outlives the run
};

}  // namespace kvsim
