#pragma once

#include <string>

#include "sim/report/chart/chart.hpp"

namespace kvsim {

/// Chooses KiB, MiB or GiB by the chart's largest value; its label becomes "`what` (unit)".
void fit_byte_unit(LineChart& chart, const std::string& what);
/// Whether a line has at least two points.
[[nodiscard]] bool shows_something(const LineChart& chart);
/// Whether the values of a line differ by more than a hundredth.
[[nodiscard]] bool values_differ(const LineChart& chart);

}  // namespace kvsim
