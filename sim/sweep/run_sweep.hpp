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

/// What one point comes to: its results as an object, of numbers, words and objects of them. Called
/// from several threads at once; the same point gives the same object.
using PointRunner =
    std::function<nlohmann::ordered_json(const Scenario& scenario, const ScenarioPoint& point)>;

/// A point as the points file holds it, on one line: {"point":12,"hash":…,"results":{…}}, or, where
/// the sweep skips what cannot be, {"point":12,"hash":null,"skipped":"why"}. Size laws that depend
/// on data are measured. Errors: InputError where the point cannot be and is not to be skipped.
[[nodiscard]] std::string run_sweep_point(const SweepPlan& plan, std::size_t point,
                                          const PointRunner& runner);

struct SweepExecution {
  int threads = 0;         // of each process; 0: as many as the machine has
  Ranks* ranks = nullptr;  // the processes that share the work; null: only this one
};

/// Runs the points `todo` (ascending), handing them out one by one, or to other processes a few at
/// a time, as each becomes free. `keep` gets every point's object in the order of completion, never
/// concurrently, only on the first process. Every process calls this with the same plan; it returns
/// on all of them when all points are done. Errors: on the first process the failure of the lowest
/// point, after all others have stopped; on others none.
void run_sweep_points(
    const SweepPlan& plan, std::span<const std::size_t> todo, const PointRunner& runner,
    const SweepExecution& execution,
    const std::function<void(std::size_t point, const std::string& object)>& keep);

}  // namespace kvsim
