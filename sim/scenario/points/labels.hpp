#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Few of `keys` that tell `objects` apart as well as all of them do: model, GPU, stack, dtype and
/// the method's keys (as far as they differ), then, one by one, the key that tells most objects
/// apart, the earlier where two do so alike. In the order of `keys`. Points that differ in format
/// and length alike need one of both.
[[nodiscard]] std::vector<std::string> telling_keys(
    const std::vector<nlohmann::ordered_json>& objects, const std::vector<std::string>& keys);

/// Sets the label of every point: its method where methods differ, and the keys that tell it apart.
/// No two are the same: of points that do not differ the later ones are numbered.
void set_labels(std::vector<ScenarioPoint>& points);

}  // namespace kvsim
