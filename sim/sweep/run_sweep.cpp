#include "sim/sweep/run_sweep.hpp"

#include <algorithm>
#include <mutex>
#include <optional>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/scenario/points/measured_points.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

}  // namespace

std::string run_sweep_point(const SweepPlan& plan, std::size_t point, const PointRunner& runner) {
  ordered_json object = {{"point", point}, {"hash", nullptr}};
  try {
    Scenario scenario = plan.scenario(point);
    if (!scenario.points.front().measured_on.empty()) {
      ReplayOptions options;
      options.threads = 1;  // the points already share the machine
      measure_laws(scenario, options);
    }
    object["hash"] = scenario.hash;
    object["results"] =
        with_place(plan.place(point), [&] { return runner(scenario, scenario.points.front()); });
  } catch (const InputError& error) {
    if (!plan.skips_impossible()) throw;
    object["hash"] = nullptr;
    object["skipped"] = error.what();
  }
  return object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

void run_sweep_points(
    const SweepPlan& plan, std::span<const std::size_t> todo, const PointRunner& runner,
    const SweepExecution& execution,
    const std::function<void(std::size_t point, const std::string& object)>& keep) {
  const auto run_one = [&](std::size_t point) { return run_sweep_point(plan, point, runner); };
  if (execution.ranks == nullptr || execution.ranks->size() == 1) {
    std::mutex guard;
    parallel_for(todo.size(), execution.threads, [&](std::size_t i) {
      const std::string object = run_one(todo[i]);
      const std::scoped_lock lock{guard};
      keep(todo[i], object);
    });
    return;
  }
  std::optional<TaskOutcome> failed;  // of the lowest point
  const auto run_some = [&](std::span<const std::size_t> points) {
    std::vector<TaskOutcome> outcomes(points.size());
    parallel_for(points.size(), execution.threads,
                 [&](std::size_t i) { outcomes[i] = outcome_of(points[i], run_one); });
    return outcomes;
  };
  const auto at_least = static_cast<std::size_t>(thread_count(execution.threads));
  execution.ranks->share(todo, at_least, run_some, [&](TaskOutcome&& outcome) {
    if (outcome.kind == TaskOutcome::kDone) {
      keep(outcome.task, outcome.text);
    } else if (!failed || outcome.task < failed->task) {
      failed = std::move(outcome);
    }
  });
  if (failed) rethrow(*failed);
}

}  // namespace kvsim
