#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/sweep/ranks.hpp"
#include "sim/sweep/sweep_plan.hpp"

namespace kvsim {

/// Returns the results of one point as an object of numbers, words and nested objects. Called
/// concurrently by several threads; deterministic for each point.
using PointRunner =
    std::function<nlohmann::ordered_json(const Scenario& scenario, const ScenarioPoint& point)>;

/// Returns the line of a point in the points file: {"point":12,"hash":…,"results":{…}}. If the
/// sweep skips impossible points, it is {"point":12,"hash":null,"skipped":"why"} for such a point.
/// Size laws that depend on data are measured. Errors: InputError if the point is impossible and is
/// not skipped.
[[nodiscard]] std::string run_sweep_point(const SweepPlan& plan, std::size_t point,
                                          const PointRunner& runner);

struct SweepExecution {
  int threads = 0;         // of each process; 0: all of the machine
  Ranks* ranks = nullptr;  // the processes that share the work; null: only this one
};

/// Runs the points `todo` (ascending) as threads become free: one by one, or a few at a time for
/// other processes. `keep` receives every point's object in the order of completion, never
/// concurrently, only on the first process. Every process calls this with the same plan; it returns
/// on all of them when all points are done. Errors: on the first process the failure of the lowest
/// point, after all others have stopped; none on the others.
void run_sweep_points(
    const SweepPlan& plan, std::span<const std::size_t> todo, const PointRunner& runner,
    const SweepExecution& execution,
    const std::function<void(std::size_t point, const std::string& object)>& keep);

}  // namespace kvsim
