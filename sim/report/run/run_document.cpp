#include "sim/report/run/run_document.hpp"

#include <optional>
#include <utility>

#include "models/units/check.hpp"
#include "sim/report/batch/run_json.hpp"
#include "sim/report/replay/replay_json.hpp"
#include "sim/report/run/run_finding.hpp"
#include "sim/report/service/serve_json.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json mean_iteration_json(const MeanIteration& it) {
  ordered_json out = {{"iterations", it.iterations},
                      {"mean_s", it.mean.count()},
                      {"decodes", it.decodes},
                      {"prefill_tokens", it.prefill_tokens},
                      {"prompt", it.prompt}};
  const ordered_json explained = explained_json({it.step});
  for (const auto& item : explained[0].items()) out[item.key()] = item.value();
  return out;
}

}  // namespace

ordered_json run_document(const RunReport& report) {
  KVSIM_CHECK(report.scenario != nullptr, "a report without its scenario");
  const Scenario& scenario = *report.scenario;
  const bool serves = scenario.kind == "serve";
  const std::size_t results = serves ? report.serves.size() : report.results.size();
  KVSIM_CHECK(results == scenario.points.size(), "{} results of {} points", results,
              scenario.points.size());
  RunParts parts{
      .calibration = serves ? calibration_json(report.serves) : calibration_json(report.results),
      .points = ordered_json::array(),
      .notes = report.notes};
  if (serves) parts.definitions = definitions_json();
  for (std::size_t i = 0; i < scenario.points.size(); ++i) {
    const ScenarioPoint& point = scenario.points[i];
    if (!serves) {
      parts.points.push_back(static_point_json(point, report.results[i]));
      continue;
    }
    ordered_json one = serve_point_json(
        point, report.serves[i],
        i < report.serve_intervals.size() ? report.serve_intervals[i] : std::nullopt);
    if (i < report.iterations.size() && report.iterations[i]) {
      one["mean_iteration"] = mean_iteration_json(*report.iterations[i]);
    }
    parts.points.push_back(std::move(one));
  }
  if (report.replay) {
    parts.replay = replay_document(*report.replay, report.skipped);
    // A run also keeps them for its page.
    if (scenario.replay && !scenario.replay->per_head) {
      for (ordered_json& method : parts.replay["methods"]) method.erase("per_head");
    }
  }
  ordered_json out = run_document(scenario, std::move(parts));
  out["finding"] = run_finding(report);
  return out;
}

}  // namespace kvsim
