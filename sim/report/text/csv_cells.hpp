#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/metrics/metric.hpp"

namespace kvsim {

/// One field: quoted if it contains a comma, a quote, or a line end.
[[nodiscard]] std::string csv_field(std::string_view text);
/// The shortest digits that parse back to the same double; empty for NaN and infinities.
[[nodiscard]] std::string csv_number(double value);
/// Empty for null.
[[nodiscard]] std::string csv_json(const nlohmann::ordered_json& value);
/// Booleans are 1 and 0; empty for null. Errors: ContractError for a distribution, which takes
/// several columns.
[[nodiscard]] std::string csv_value(const MetricValue& value);

/// ",VALUE" for each of the columns.
template <class Result>
[[nodiscard]] std::string csv_values(const std::vector<const Metric<Result>*>& columns,
                                     const Result& result) {
  std::string out;
  for (const Metric<Result>* metric : columns)
    out.append(",").append(csv_value(metric->value(result)));
  return out;
}

}  // namespace kvsim
