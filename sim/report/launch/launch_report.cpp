#include "sim/report/launch/launch_report.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "models/launch/engine_command.hpp"
#include "models/launch/shell_words.hpp"
#include "models/units/error.hpp"
#include "sim/launch/manifest.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

ordered_json launch_json(const NamedLaunch& named) {
  const Launch& launch = named.launch;
  ordered_json out{
      {"of", named.of},
      {"engine", launch.engine->engine},
      {"version", launch.version},
      {"model", launch.model},
      {"gpu", launch.gpu},
      {"router", launch.router.empty() ? ordered_json(nullptr) : ordered_json(launch.router)}};
  out["roles"] = ordered_json::array();
  for (const LaunchRole& role : launch.roles) {
    ordered_json one{{"name", role.name},      {"replicas", role.replicas},
                     {"gpu_count", role.gpus}, {"command", shell_command(role.words)},
                     {"argv", role.words},     {"files", ordered_json::array()}};
    for (const LaunchFile& file : role.files) {
      one["files"].push_back({{"name", file.name}, {"text", file.text}});
    }
    out["roles"].push_back(std::move(one));
  }
  out["notes"] = launch.notes;
  return out;
}

}  // namespace

std::vector<NamedLaunch> point_launches(const Scenario& scenario) {
  std::vector<NamedLaunch> launches;
  for (const ScenarioPoint& point : scenario.points) {
    NamedLaunch one{point.label.empty() ? scenario.title : point.label, scenario.name,
                    launch_of(point)};
    const bool known = std::any_of(launches.begin(), launches.end(), [&](const NamedLaunch& other) {
      return other.launch.roles == one.launch.roles && other.launch.gpu == one.launch.gpu;
    });
    if (!known) launches.push_back(std::move(one));
  }
  return launches;
}

ordered_json launch_document(const std::vector<NamedLaunch>& launches) {
  ordered_json document{{"schema", "kvsim.launch/1"}, {"launches", ordered_json::array()}};
  for (const NamedLaunch& one : launches) document["launches"].push_back(launch_json(one));
  return document;
}

std::string launch_manifest(const std::vector<NamedLaunch>& launches, const std::string& kind,
                            const std::string& place) {
  const ManifestKind platform = read_manifest_kind(kind, place);
  if (launches.size() != 1) {
    std::string names;
    for (const NamedLaunch& one : launches) names += fmt::format("; {}", one.of);
    throw InputError{
        fmt::format("{}: expected one deployment, got {}{}", place, launches.size(), names)};
  }
  return manifest_text(launches.front().launch, platform, launches.front().name);
}

}  // namespace kvsim
