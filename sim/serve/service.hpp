#pragma once

// Inside of sim/serve: run_serve with parts that tests replace or look at.

#include <functional>
#include <memory>

#include "sim/serve/continuous_engine.hpp"
#include "sim/serve/serve_run.hpp"

namespace kvsim {

struct ServeHooks {
  /// Stands in for mixed_iteration_cost.
  std::function<std::unique_ptr<IterationCost>(const CostInput&, const Roofline&)> cost{};
  /// Stands in for the scheduler that the spec names.
  std::function<std::unique_ptr<Scheduler>(const SchedulerSpec&, const SchedulerSite&)> scheduler{};
  ServeObserver* observer = nullptr;  // outlives the run
};

[[nodiscard]] ServeResult run_serve(const ServeSpec& spec, const ServeOptions& options,
                                    const ServeHooks& hooks);

}  // namespace kvsim
