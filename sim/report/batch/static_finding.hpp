#pragma once

#include <string>
#include <vector>

#include "sim/batch/static_run.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The finding of the static points of a scenario. Empty without points.
[[nodiscard]] std::string static_finding(const Scenario& scenario,
                                         const std::vector<StaticResult>& results);

}  // namespace kvsim
