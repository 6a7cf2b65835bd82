#pragma once

#include <string>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// The finding for the points of a run. Empty if there are no points.
[[nodiscard]] std::string points_finding(const RunReport& report);
/// The same, then the finding of its replay. Empty if there is neither.
[[nodiscard]] std::string run_finding(const RunReport& report);

}  // namespace kvsim
