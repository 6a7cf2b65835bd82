#pragma once

#include <optional>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"
#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/serve_result.hpp"

namespace kvsim {

/// A point of kind "serve", with the keys that docs/results.md lists.
[[nodiscard]] nlohmann::ordered_json serve_point_json(
    const ScenarioPoint& point, const ServeResult& result,
    const std::optional<ServeIntervals>& intervals = std::nullopt);
/// The definitions of the times of a service's requests, as text by key.
[[nodiscard]] nlohmann::ordered_json definitions_json();

}  // namespace kvsim
