#pragma once

// Charts as pages draw them: the specs of sim/report/html/charts.js, in base units. A page's chart
// shows the same lines as the SVG, in the same order and colours.

#include <nlohmann/json.hpp>

#include "sim/report/chart/chart.hpp"

namespace kvsim {

[[nodiscard]] nlohmann::ordered_json page_chart(const LineChart& chart);
[[nodiscard]] nlohmann::ordered_json page_chart(const AreaChart& chart);
[[nodiscard]] nlohmann::ordered_json page_chart(const ScatterChart& chart);
[[nodiscard]] nlohmann::ordered_json page_chart(const BarChart& chart);
[[nodiscard]] nlohmann::ordered_json page_chart(const HeatMap& map);

/// An axis's name without its unit, and the unit of its values in files: "HBM (GiB)" over a column
/// "peak_bytes" is "HBM" in "B".
struct PageAxis {
  std::string name;
  std::string unit;
};
[[nodiscard]] PageAxis page_axis(const std::string& label, const std::string& column);

}  // namespace kvsim
