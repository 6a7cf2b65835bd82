// Figures of `kvsim validate served`.

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "sim/cli/validate/served/served_report.hpp"
#include "sim/report/chart/chart.hpp"
#include "traces/requests/random_stream.hpp"

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

struct ShownMetric {
  std::string metric, title, quantity;
};
const std::vector<ShownMetric>& quantities() {
  static const std::vector<ShownMetric> all{
      {"ttft", "time to the first token", "TTFT (s)"},
      {"tpot", "time per output token", "TPOT (s)"},
      {"itl", "gaps between tokens", "ITL (s)"},
      {"e2e", "time of a request", "E2E (s)"},
      {"output_throughput", "output tokens per second", "throughput (tokens/s)"}};
  return all;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : 0.5 * (values[n / 2 - 1] + values[n / 2]);
}

/// Median absolute errors of equally large groups of runs, by share of the saturation rate.
LineChart error_by_load(const ServedScore& score) {
  LineChart chart;
  chart.name = "served_error_by_load";
  chart.title = "median absolute error by load";
  chart.x_label = "share of the saturation rate (%)";
  chart.y_label = "median absolute error (%)";
  chart.x_column = "load_percent";
  chart.y_column = "median_error_percent";
  chart.integer_x = false;
  for (const ShownMetric& q : quantities()) {
    std::vector<std::pair<double, double>> values;  // load, absolute error, both in %
    for (const ServedComparison& c : score.comparisons) {
      const ScoredRun& run = score.runs[c.run];
      const auto& load = run.predicted.load;
      // Bursts have no request rate; their load is 1 by definition.
      const bool burst = run.mapped.workload.arrivals == ServedArrivals::kAtOnce;
      if (c.metric == q.metric && is_central(c) && load && *load <= 2 && !burst) {
        values.emplace_back(100 * *load, 100 * std::abs(c.error()));
      }
    }
    constexpr std::size_t kParts = 8;
    constexpr std::size_t kMin = 3;
    if (values.size() < kParts * kMin) continue;
    std::sort(values.begin(), values.end());
    ChartLine line{.label = q.title};
    for (std::size_t part = 0; part < kParts; ++part) {
      std::vector<double> loads, errors;
      const std::size_t end = (part + 1) * values.size() / kParts;
      for (std::size_t i = part * values.size() / kParts; i < end; ++i) {
        loads.push_back(values[i].first);
        errors.push_back(values[i].second);
      }
      const ChartPoint point{median(loads), median(errors)};
      if (line.points.empty() || point.x > line.points.back().x) line.points.push_back(point);
    }
    if (line.points.size() > 1) chart.lines.push_back(std::move(line));
  }
  return chart;
}

/// The share of measured values in intervals of each nominal coverage. The 90 % interval is widened
/// and narrowed on a logarithmic scale, as if errors were lognormal on both sides.
LineChart coverage(const ServedScore& score) {
  LineChart chart;
  chart.name = "served_coverage";
  chart.title = "measured values in the intervals";
  chart.x_label = "nominal coverage (%)";
  chart.y_label = "observed coverage (%)";
  chart.x_column = "nominal_percent";
  chart.y_column = "observed_percent";
  const double z90 = normal_quantile(0.95);
  ChartLine equal{.label = "as nominal", .has_marks = false};
  for (int nominal = 10; nominal <= 90; nominal += 10) {
    equal.points.push_back({1.0 * nominal, 1.0 * nominal});
  }
  for (const ShownMetric& q : quantities()) {
    ChartLine line{.label = q.title};
    for (int nominal = 10; nominal <= 90; nominal += 10) {
      const double power = normal_quantile(0.5 + 0.005 * nominal) / z90;
      double n = 0;
      double in = 0;
      for (const ServedComparison& c : score.comparisons) {
        if (c.metric != q.metric || !c.low || !c.high || *c.low <= 0) continue;
        const double low = c.predicted * std::pow(*c.low / c.predicted, power);
        const double high = c.predicted * std::pow(*c.high / c.predicted, power);
        n += 1;
        in += low <= c.measured && c.measured <= high ? 1 : 0;
      }
      constexpr double kMin = 10;
      if (n >= kMin) line.points.push_back({1.0 * nominal, 100 * in / n});
    }
    if (!line.points.empty()) chart.lines.push_back(std::move(line));
  }
  if (!chart.lines.empty()) chart.lines.push_back(std::move(equal));
  return chart;
}

}  // namespace

std::vector<Figure> served_figures(const ServedScore& score) {
  std::vector<Figure> figures;
  for (const ShownMetric& q : quantities()) {
    if (auto figure = parity(score, q.metric, q.title, q.quantity)) {
      figures.push_back(std::move(*figure));
    }
  }
  for (const LineChart& chart : {error_by_load(score), coverage(score)}) {
    if (!chart.lines.empty()) figures.push_back(draw(chart));
  }
  return figures;
}

}  // namespace kvsim
