#include "sim/report/sweep/sweep_engines.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/units/error.hpp"
#include "sim/engine/parallel.hpp"
#include "sim/report/batch/engine_report.hpp"

namespace kvsim {
namespace {

using nlohmann::json;

/// Whether the axis can change an engine's settings or the model. Sweeps over others read only one
/// scenario.
bool changes_engine(const ScenarioAxis& axis) {
  constexpr std::array<std::string_view, 7> kOthers{
      "/batch/", "/prompt_tokens/", "/output_tokens/", "/method/", "/requests/", "/seed/", "/slo/"};
  return std::none_of(kOthers.begin(), kOthers.end(),
                      [&](std::string_view key) { return (axis.pointer + "/").starts_with(key); });
}

/// The first point of each combination of the values that can change an engine.
std::vector<std::size_t> first_points(const ScenarioSweep& sweep) {
  std::vector<std::size_t> axes;
  for (std::size_t a = 0; a < sweep.plan().axes().size(); ++a) {
    if (changes_engine(sweep.plan().axes()[a])) axes.push_back(a);
  }
  std::vector<std::size_t> out;
  std::set<std::string> known;
  for (std::size_t i = 0; i < sweep.size(); ++i) {
    if (sweep.skipped(i)) continue;
    if (axes.empty()) return {i};
    json key = json::array();
    const std::vector<json> values = sweep.plan().values(i);
    for (const std::size_t a : axes) key.push_back(values[a]);
    if (known.insert(key.dump(-1, ' ', false, json::error_handler_t::replace)).second) {
      out.push_back(i);
    }
  }
  return out;
}

/// A key that is equal for points with equal engines and models; empty if the point cannot be read
/// again.
std::string engine_key(const SweepPlan& plan, std::size_t point) {
  try {
    const Scenario scenario = plan.scenario(point);
    nlohmann::ordered_json key{{"engines", engines_json(scenario)}};
    for (const char* name : {"model", "dtype"}) {
      key[name] = scenario.points.front().keys.value(name, nlohmann::ordered_json(nullptr));
    }
    return key.dump(-1, ' ', false, json::error_handler_t::replace);
  } catch (const InputError&) {  // a file it names has changed since
    return "";
  }
}

}  // namespace

Scenario sweep_engines(const ScenarioSweep& sweep) {
  const std::vector<std::size_t> points = first_points(sweep);
  std::vector<std::string> keys(points.size());
  parallel_for(points.size(), sweep.threads(),
               [&](std::size_t i) { keys[i] = engine_key(sweep.plan(), points[i]); });
  Scenario out;
  std::set<std::string> known{""};
  const auto append = [](auto& to, auto& from) {
    for (auto& one : from) to.push_back(std::move(one));
  };
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (!known.insert(keys[i]).second) continue;
    Scenario one = sweep.plan().scenario(points[i]);
    append(out.points, one.points);
    append(out.own_models, one.own_models);  // the points refer to these
    append(out.own_gpus, one.own_gpus);
    append(out.own_calibrations, one.own_calibrations);
  }
  return out;
}

}  // namespace kvsim
