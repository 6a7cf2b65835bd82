#include "sim/report/chart/line_checks.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace kvsim {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kGiB = 1024.0 * kMiB;

/// MiB below 4 GiB, GiB above: the most readable unit for `largest` bytes.
std::pair<double, std::string> byte_unit(double largest) {
  constexpr double kManyMiB = 4096;
  if (largest >= kManyMiB * kMiB) return {kGiB, "GiB"};
  if (largest >= kMiB) return {kMiB, "MiB"};
  return {1024.0, "KiB"};
}

}  // namespace

void fit_byte_unit(LineChart& chart, const std::string& what) {
  double largest = 0;
  for (const ChartLine& line : chart.lines) {
    for (const ChartPoint p : line.points) largest = std::max(largest, p.y);
  }
  const auto [unit, name] = byte_unit(largest);
  chart.y_unit = unit;
  chart.y_label = fmt::format("{} ({})", what, name);
}

bool shows_something(const LineChart& chart) {
  return std::any_of(chart.lines.begin(), chart.lines.end(),
                     [](const ChartLine& line) { return line.points.size() >= 2; });
}

bool values_differ(const LineChart& chart) {
  constexpr double kAlike = 0.01;
  return std::any_of(chart.lines.begin(), chart.lines.end(), [](const ChartLine& line) {
    const auto [low, high] =
        std::minmax_element(line.points.begin(), line.points.end(),
                            [](ChartPoint a, ChartPoint b) { return a.y < b.y; });
    return !line.points.empty() && high->y - low->y > kAlike * high->y;
  });
}

}  // namespace kvsim
