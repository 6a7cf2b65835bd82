#pragma once

#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "sim/batch/static_run.hpp"

namespace kvsim {

/// A number; null where it is not finite or absent.
[[nodiscard]] nlohmann::ordered_json number_json(const std::optional<double>& value);

/// A predicted figure as NAME, and the ends of its interval as NAME_low and NAME_high: null where
/// nothing says one.
template <class Ends>
void put_predicted(nlohmann::ordered_json& out, const std::string& name,
                   nlohmann::ordered_json value, const std::optional<Ends>& interval) {
  out[name] = std::move(value);
  out[name + "_low"] = interval ? nlohmann::ordered_json(interval->low.count()) : nullptr;
  out[name + "_high"] = interval ? nlohmann::ordered_json(interval->high.count()) : nullptr;
}

/// What a static run is measured by, one key a figure, as docs/results.md lists them: memory,
/// rates, times, and of each `NAME_low` and `NAME_high`, null where the run has no interval.
[[nodiscard]] nlohmann::ordered_json static_figures_json(const StaticSpec& spec,
                                                         const StaticResult& result);

}  // namespace kvsim
