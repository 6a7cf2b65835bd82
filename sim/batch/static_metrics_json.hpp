#pragma once

#include <optional>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "sim/batch/static_run.hpp"

namespace kvsim {

/// A number; null if it is not finite or absent.
[[nodiscard]] nlohmann::ordered_json number_json(const std::optional<double>& value);

/// Writes a predicted figure as NAME and the ends of its interval as NAME_low and NAME_high, which
/// are null if there is no interval.
template <class Ends>
void put_predicted(nlohmann::ordered_json& out, const std::string& name,
                   nlohmann::ordered_json value, const std::optional<Ends>& interval) {
  out[name] = std::move(value);
  out[name + "_low"] = interval ? nlohmann::ordered_json(interval->low.count()) : nullptr;
  out[name + "_high"] = interval ? nlohmann::ordered_json(interval->high.count()) : nullptr;
}

/// The metrics of a static run, one key per metric, as listed in docs/results.md: memory, rates,
/// times, and `NAME_low` and `NAME_high` of each, null if the run has no interval.
[[nodiscard]] nlohmann::ordered_json static_metrics_json(const StaticSpec& spec,
                                                         const StaticResult& result);

}  // namespace kvsim
