#pragma once

#include <cstddef>
#include <functional>

#include "sim/plan/plan_result.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

struct PlanOptions {
  int threads = 0;    // 0: the machine's; no result depends on it
  bool prune = true;  // leave out layouts that bounds show to be neither the best nor on the front
  std::function<void(std::size_t)> begins{};  // called with the number of searches, before the
                                              // first
  std::function<void(double)> progress{};     // called with the share of them that is done
  /// True: candidates that have not begun are skipped and marked `pruned`. Called by all threads.
  std::function<bool()> stop{};
};

/// Answers `scenario.plan`: judges methods by the quality floor, searches every method at its least
/// budget on every GPU and number of GPUs that the scenario lists, and finds the front
/// (mark_pareto) of all ways to run that were met. Laws that depend on data are measured
/// (measure_laws). Pure: same scenario, same result, whatever the threads. Errors: InputError where
/// the scenario has no plan, a price is missing, or a candidate cannot be run at all.
[[nodiscard]] PlanResult run_plan(const Scenario& scenario, const PlanOptions& options = {});

}  // namespace kvsim
