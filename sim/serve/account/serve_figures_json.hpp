#pragma once

#include <optional>

#include <nlohmann/json.hpp>

#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// What a run of a service is measured by, one key a figure, as docs/results.md lists them: counts,
/// times, rates, shares, memory, and of each that depends on times `NAME_low` and `NAME_high`, null
/// without intervals. What a run has beside them (bounds, owners, events, words) is not here.
[[nodiscard]] nlohmann::ordered_json serve_figures_json(
    const ServeSpec& spec, const ServeResult& result,
    const std::optional<ServeIntervals>& intervals);

}  // namespace kvsim
