#pragma once

#include <optional>
#include <vector>

#include "models/json/field.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Checks the form of one entry of `published`. Errors: InputError.
void check_published(const Field& entry);

/// Returns the published value of `entry` for the point that its `where` selects; nullopt if it
/// selects none. Errors: InputError, also if it selects several.
[[nodiscard]] std::optional<PublishedValue> read_published(
    const Field& entry, const std::vector<ScenarioPoint>& points);

}  // namespace kvsim
