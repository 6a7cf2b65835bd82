#include "sim/report/batch/engine_report.hpp"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/batch/engine_settings.hpp"
#include "sim/report/batch/startup_report.hpp"
#include "sim/report/catalogue/describe.hpp"
#include "sim/report/text/text.hpp"
#include "sim/serve/service/serve_run.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

struct EngineOnGpu {
  std::string stack, gpu;
  std::int64_t gpus = 1;
  std::shared_ptr<const EngineSettings> settings;
};

/// Each engine once, in the order of the points.
std::vector<EngineOnGpu> engines_of(const Scenario& scenario) {
  std::vector<EngineOnGpu> out;
  const auto add = [&](const auto& spec, std::int64_t gpus) {
    EngineOnGpu one{label_of(*spec.stack), spec.gpu->name, gpus, engine_settings(spec)};
    if (!one.settings) return;
    const bool known = std::any_of(out.begin(), out.end(), [&](const EngineOnGpu& other) {
      return other.stack == one.stack && other.gpu == one.gpu && other.gpus == one.gpus &&
             settings_json(*other.settings) == settings_json(*one.settings);
    });
    if (!known) out.push_back(std::move(one));
  };
  for (const ScenarioPoint& point : scenario.points) {
    if (point.serve) {
      add(*point.serve, gpus_per_replica(*point.serve));
    } else {
      add(point.spec, point.spec.gpus());
    }
  }
  return out;
}

/// A line per model whose published weights are quantized: its name implies the format.
std::string published_weights_text(const Scenario& scenario, std::size_t width) {
  std::string out;
  std::set<std::string> named;
  const auto add = [&](const auto& spec) {
    const bool as_published =
        spec.weight_format == nullptr && spec.weight_dtype == spec.llm->published_dtype;
    if (!as_published || bits_of(spec.llm->published_dtype) >= 16) return;
    if (!named.insert(spec.llm->name).second) return;
    out += paragraph(fmt::format("- weights of {}: {}; as published", clean_text(spec.llm->name),
                                 published_weights_words(*spec.llm)),
                     width, 2);
  };
  for (const ScenarioPoint& point : scenario.points) {
    if (point.serve) {
      add(*point.serve);
    } else {
      add(point.spec);
    }
  }
  return out;
}

}  // namespace

ordered_json engines_json(const Scenario& scenario) {
  ordered_json out = ordered_json::array();
  for (const EngineOnGpu& one : engines_of(scenario)) {
    ordered_json engine{{"stack", one.stack}, {"gpu", one.gpu}, {"gpu_count", one.gpus}};
    engine.update(settings_json(*one.settings));
    out.push_back(std::move(engine));
  }
  return out;
}

std::string engines_text(const Scenario& scenario, std::size_t width) {
  constexpr std::size_t kMaxEngines = 3;
  struct Named {
    std::string names, settings;
  };
  std::vector<Named> engines;  // engines with equal settings share an entry
  for (const EngineOnGpu& one : engines_of(scenario)) {
    const std::string name = fmt::format("{} on {} x {}", one.stack, one.gpus, one.gpu);
    std::string settings = settings_text(*one.settings, width);
    const auto same = std::find_if(engines.begin(), engines.end(),
                                   [&](const Named& other) { return other.settings == settings; });
    if (same == engines.end()) {
      engines.push_back({name, std::move(settings)});
    } else {
      same->names += ", " + name;
    }
  }
  std::string out;
  for (std::size_t i = 0; i < std::min(engines.size(), kMaxEngines); ++i) {
    if (engines.size() > 1) out += paragraph(fmt::format("{}:", engines[i].names), width);
    out += engines[i].settings;
  }
  if (engines.size() > kMaxEngines) {
    out += fmt::format("and {} more engines: see the JSON result\n", engines.size() - kMaxEngines);
  }
  return out + published_weights_text(scenario, width);
}

}  // namespace kvsim
