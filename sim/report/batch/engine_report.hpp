#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The engines of a scenario's points with their settings, each once: "stack", "gpu", "gpu_count"
/// and the keys of settings_json. Points of stacks without settings are skipped.
[[nodiscard]] nlohmann::ordered_json engines_json(const Scenario& scenario);
/// The same for people, and the quantized weights that run as their checkpoint is published; empty
/// if no point has either.
[[nodiscard]] std::string engines_text(const Scenario& scenario, std::size_t width);

}  // namespace kvsim
