#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The engines of a scenario's points with their settings, each once: "stack", "gpu", "gpu_count"
/// and what settings_json gives. Points of stacks without settings are left out.
[[nodiscard]] nlohmann::ordered_json engines_json(const Scenario& scenario);
/// The same for people; empty where no point has an engine with settings.
[[nodiscard]] std::string engines_text(const Scenario& scenario, std::size_t width);

}  // namespace kvsim
