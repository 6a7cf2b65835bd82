#pragma once

// A figure as a document: what its chart shows, so that it can be drawn again, in another style or
// with those of other results, by our own script. Scripts found in a folder are never run: gnuplot
// has `system`.

#include <set>
#include <string>
#include <variant>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "sim/report/chart/chart.hpp"

namespace kvsim {

using AnyChart = std::variant<LineChart, AreaChart, ScatterChart, ParityChart, BarChart, HeatMap>;

/// The ending of figures' documents: NAME.figure.json next to NAME.csv.
inline constexpr const char* kFigureSuffix = ".figure.json";
inline constexpr const char* kFigureSchema = "kvsim.figure/1";

/// The chart with all that it shows, in base units; Figure::chart.
[[nodiscard]] nlohmann::ordered_json chart_json(const LineChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const AreaChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const ScatterChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const ParityChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const BarChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const HeatMap& map);

/// The text of NAME.figure.json; empty where the figure has no chart.
[[nodiscard]] std::string figure_document(const Figure& figure);

struct StoredFigure {
  std::string kind;  // Figure::kind; the chart's name where it had none
  AnyChart chart;
};
/// A document read back, every value checked, so that drawing it can neither fail a promise of ours
/// nor say anything to gnuplot but values and quoted texts. Names of parts live in `words`, which
/// outlives the chart. Errors: InputError with file and place.
[[nodiscard]] StoredFigure read_figure(const Field& document, std::set<std::string>& words);

[[nodiscard]] Figure draw(const AnyChart& chart);
[[nodiscard]] const std::string& name_of(const AnyChart& chart);

}  // namespace kvsim
