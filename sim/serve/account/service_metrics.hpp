#pragma once

#include <optional>

#include <nlohmann/json_fwd.hpp>

#include "sim/metrics/metric.hpp"
#include "sim/serve/account/serve_intervals.hpp"
#include "sim/serve/serve_result.hpp"

namespace kvsim {

/// Metrics of a service, in the order of result documents. docs/results.md lists them.
[[nodiscard]] MetricTable<ServeResult> service_metrics();

/// All of them, one key each. Metrics that vary with times also have KEY_low and KEY_high at the
/// end, grouped by kind; null without intervals.
[[nodiscard]] nlohmann::ordered_json service_metrics_json(
    const ServeResult& result, const std::optional<ServeIntervals>& intervals);

}  // namespace kvsim
