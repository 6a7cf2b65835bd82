#pragma once

#include <optional>

#include <nlohmann/json.hpp>

#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// The metrics of a service's run, one key each, as docs/results.md lists them: counts, times,
/// rates, shares, memory. Those that depend on times also have `NAME_low` and `NAME_high`, null
/// without intervals. Other parts of a result (bounds, owners, events, texts) are not included.
[[nodiscard]] nlohmann::ordered_json serve_metrics_json(
    const ServeSpec& spec, const ServeResult& result,
    const std::optional<ServeIntervals>& intervals);

}  // namespace kvsim
