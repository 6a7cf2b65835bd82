#include "sim/explorer/explore.hpp"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "models/json/field.hpp"
#include "models/units/error.hpp"
#include "sim/batch/point/fit_range.hpp"
#include "sim/batch/static_run.hpp"
#include "sim/bench/bench_compare.hpp"
#include "sim/explorer/request.hpp"
#include "sim/launch/manifest.hpp"
#include "sim/report/batch/run_json.hpp"
#include "sim/report/batch/startup_report.hpp"
#include "sim/report/batch/static_finding.hpp"
#include "sim/report/launch/launch_report.hpp"
#include "sim/scenario/read/log_start.hpp"
#include "sim/scenario/read/read_scenario.hpp"

namespace kvsim {

Scenario explored_scenario(std::string_view text) {
  const std::string place{kExplorerFile};
  const Field document = Field::parse(text, place);
  if (!document.is_object()) document.expected("an object");
  for (const char* key : {"extends", "replay", "sweep", "plan"}) {
    if (const auto field = document.find(key)) {
      field->fail("is not for the explorer, which runs static batches and reads no files");
    }
  }
  Scenario scenario = scenario_of(document.raw(), place, place, true);
  if (scenario.kind != "static") {
    document.at("kind").fail("the explorer runs static batches (\"kind\": \"static\")");
  }
  if (scenario.points.empty()) document.fail("has no points");
  if (scenario.points.size() > kMaxExplored) {
    document.fail(fmt::format("has {} points; the explorer accepts at most {}",
                              scenario.points.size(), kMaxExplored));
  }
  for (const ScenarioPoint& point : scenario.points) {
    if (point.measured_on.empty()) continue;
    document.fail(fmt::format(
        "the entries that {} keeps depend on the data and must be measured on {}: kvsim run",
        point.method.name, point.measured_on.string()));
  }
  return scenario;
}

nlohmann::ordered_json explore_launch(std::string_view text) {
  const Scenario scenario = explored_scenario(text);
  const ScenarioPoint& first = scenario.points.front();
  const std::vector<NamedLaunch> launches{
      {first.label.empty() ? scenario.title : first.label, scenario.name, launch_of(first)}};
  nlohmann::ordered_json out = launch_document(launches);
  for (const std::string_view kind : manifest_kinds()) {
    try {
      out["manifests"][std::string{kind}] =
          launch_manifest(launches, std::string{kind}, "manifest");
    } catch (const InputError&) {
      // The platform does not support this engine, so there is no file of that kind.
    }
  }
  return out;
}

nlohmann::ordered_json explore_log(std::string_view text) {
  const Field question = Field::parse(text, "question");
  question.allow_only({"scenario", "log"});
  const nlohmann::json document = question.at("scenario").raw();
  const ScenarioSource source{
      .name = std::string{kExplorerFile},
      .read = [&document](const std::vector<Override>& overrides) {
        return explored_scenario(
            scenario_document_of(document.dump(), std::string{kExplorerFile}, overrides).dump());
      }};
  return log_start_json(start_of_log(question.at("log").string(), "log", source));
}

nlohmann::ordered_json explore_compare(std::string_view text) {
  const Field question = Field::parse(text, "question");
  question.allow_only({"result", "bench"});
  const std::string result = question.at("result").string();
  const std::string bench = question.at("bench").string();
  return bench_comparison_json(
      compare_bench({.text = result, .place = "result"}, {.text = bench, .place = "benchmark"}));
}

nlohmann::ordered_json explore_run(std::string_view text) {
  const Scenario scenario = explored_scenario(text);
  std::vector<StaticResult> results;
  for (const ScenarioPoint& point : scenario.points) {
    // The same options as `kvsim run` uses for so few points.
    results.push_back(run_static(point.spec, {.time_terms = true, .intervals = true}));
    StaticResult& result = results.back();
    find_oom_range(point.spec, result);
    result.fit_range = fit_range(point.spec, result.startup);
    result.notes.insert(result.notes.begin(), point.notes.begin(), point.notes.end());
  }
  nlohmann::ordered_json out = run_document(scenario, results, {});
  out["finding"] = static_finding(scenario, results);
  return out;
}

}  // namespace kvsim
