#pragma once

#include <cstddef>
#include <string>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The engines of a scenario's points with their settings, each once: "stack", "gpu", "gpu_count"
/// and the keys of settings_json. Points of stacks without settings are skipped.
[[nodiscard]] nlohmann::ordered_json engines_json(const Scenario& scenario);
/// The same as text, plus the quantized weights that run in their published format. Empty if no
/// point has either.
[[nodiscard]] std::string engines_text(const Scenario& scenario, std::size_t width);

}  // namespace kvsim
