#pragma once

#include <string>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// Of the points of a run. Empty without points.
[[nodiscard]] std::string points_finding(const RunReport& report);
/// The same, then that of its replay. Empty if there is neither.
[[nodiscard]] std::string run_finding(const RunReport& report);

}  // namespace kvsim
