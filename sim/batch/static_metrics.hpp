#pragma once

#include <optional>

#include "sim/batch/static_run.hpp"
#include "sim/metrics/metric.hpp"

namespace kvsim {

/// A static run whose metrics are read.
struct StaticPoint {
  const StaticSpec& spec;
  const StaticResult& result;
  std::optional<Bytes> kv_bytes_wanted{};  // of the scenario's point
};

/// Metrics of a static run, in the order of documents. docs/results.md lists them.
[[nodiscard]] MetricTable<StaticPoint> static_metrics();

}  // namespace kvsim
