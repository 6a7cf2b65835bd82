#pragma once

// A figure as a document: the contents of its chart. Our own script can draw it again from that, in
// another style or together with other results. Scripts found in a folder are never run, because
// gnuplot has `system`.

#include <set>
#include <string>
#include <variant>

#include <nlohmann/json.hpp>

#include "models/json/field.hpp"
#include "sim/report/chart/chart.hpp"

namespace kvsim {

using AnyChart = std::variant<LineChart, AreaChart, ScatterChart, ParityChart, BarChart, HeatMap>;

/// The suffix of figures' documents: NAME.figure.json next to NAME.csv.
inline constexpr const char* kFigureSuffix = ".figure.json";
inline constexpr const char* kFigureSchema = "kvsim.figure/1";

/// The whole contents of the chart, in base units; Figure::chart.
[[nodiscard]] nlohmann::ordered_json chart_json(const LineChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const AreaChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const ScatterChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const ParityChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const BarChart& chart);
[[nodiscard]] nlohmann::ordered_json chart_json(const HeatMap& map);

/// The text of NAME.figure.json; empty if the figure has no chart.
[[nodiscard]] std::string figure_document(const Figure& figure);

struct StoredFigure {
  std::string kind;  // Figure::kind; the chart's name if it had none
  AnyChart chart;
};
/// Reads a document back and checks every value. Drawing it can therefore neither fail a
/// KVSIM_CHECK nor pass anything to gnuplot except values and quoted texts. `words` owns the names
/// of parts and must outlive the chart. Errors: InputError with file and place.
[[nodiscard]] StoredFigure read_figure(const Field& document, std::set<std::string>& words);

[[nodiscard]] Figure draw(const AnyChart& chart);
[[nodiscard]] const std::string& name_of(const AnyChart& chart);

}  // namespace kvsim
