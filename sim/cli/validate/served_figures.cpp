// Figures of `kvsim validate served`.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "sim/cli/validate/served_report.hpp"
#include "sim/report/chart/chart.hpp"

namespace kvsim {
namespace {

bool is_central(const ServedComparison& c) {
  return c.stat == "mean" || c.stat == "median" || c.stat == "total";
}

std::optional<Figure> parity(const ServedScore& score, const std::string& metric,
                             const std::string& title, const std::string& quantity) {
  std::map<std::string, std::vector<ChartPoint>> by_engine;
  std::size_t n = 0;
  for (const ServedComparison& c : score.comparisons) {
    if (c.metric != metric || !is_central(c) || c.measured <= 0 || c.predicted <= 0) continue;
    by_engine[score.runs[c.run].mapped.settings.engine->name].push_back({c.measured, c.predicted});
    ++n;
  }
  if (n == 0) return std::nullopt;
  ParityChart chart;
  chart.name = "served_" + metric;
  chart.title = fmt::format("{}: predicted against measured, {} values", title, n);
  chart.x_label = fmt::format("measured {}", quantity);
  chart.y_label = fmt::format("predicted {}", quantity);
  chart.x_column = "measured_" + metric;
  chart.y_column = "predicted_" + metric;
  chart.band = 0.2;
  chart.band_label = "within 20 %";
  for (auto& [engine, points] : by_engine) {
    chart.groups.push_back(
        {.label = engine, .points = std::move(points), .reference = true, .faint = false});
  }
  return draw(chart);
}

}  // namespace

std::vector<Figure> served_figures(const ServedScore& score) {
  struct Quantity {
    std::string metric, title, quantity;
  };
  const std::vector<Quantity> quantities{
      {"ttft", "time to the first token", "TTFT (s)"},
      {"tpot", "time per output token", "TPOT (s)"},
      {"itl", "gaps between tokens", "ITL (s)"},
      {"e2e", "time of a request", "E2E (s)"},
      {"output_throughput", "output tokens per second", "throughput (tokens/s)"}};
  std::vector<Figure> figures;
  for (const Quantity& q : quantities) {
    if (auto figure = parity(score, q.metric, q.title, q.quantity)) {
      figures.push_back(std::move(*figure));
    }
  }
  return figures;
}

}  // namespace kvsim
