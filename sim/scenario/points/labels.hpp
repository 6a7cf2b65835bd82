#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// A few of `keys` that distinguish `objects` as well as all of them do: model, GPU, stack, dtype
/// and the method's keys (if they differ), then, one by one, the key that distinguishes most
/// objects, ties to the earlier. In the order of `keys`. Points that always differ in both format
/// and length need only one of them.
[[nodiscard]] std::vector<std::string> distinguishing_keys(
    const std::vector<nlohmann::ordered_json>& objects, const std::vector<std::string>& keys);

/// Sets the label of every point: its method if methods differ, and the keys that distinguish it.
/// No two are the same: equal points are numbered from the second on.
void set_labels(std::vector<ScenarioPoint>& points);

}  // namespace kvsim
