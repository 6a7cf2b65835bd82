#pragma once

#include <cstddef>
#include <functional>

#include "sim/plan/plan_result.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

struct PlanOptions {
  int threads = 0;    // 0: all of the machine; no result depends on it
  bool prune = true;  // skip layouts whose bounds show that they are neither the best nor on the
                      // front
  std::function<void(std::size_t)> begins{};  // called with the number of searches, before the
                                              // first
  std::function<void(double)> progress{};     // called with the share of searches that is done
  /// If it returns true, candidates that have not begun are skipped and marked `pruned`. Called by
  /// all threads.
  std::function<bool()> stop{};
};

/// Answers `scenario.plan`. Judges methods by the quality floor and searches each method at its
/// smallest budget on every GPU and number of GPUs of the scenario. Then marks the Pareto front
/// (mark_pareto) of all operating points found. Size laws that depend on data are measured
/// (measure_laws). Pure: the same scenario has the same result for any number of threads. Errors:
/// InputError if the scenario has no plan, a price is missing, or a candidate cannot be run at all.
[[nodiscard]] PlanResult run_plan(const Scenario& scenario, const PlanOptions& options = {});

}  // namespace kvsim
