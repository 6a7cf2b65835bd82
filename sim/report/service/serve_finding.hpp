#pragma once

#include <string>
#include <vector>

#include "sim/scenario/scenario.hpp"
#include "sim/serve/serve_result.hpp"

namespace kvsim {

/// The finding of the services of a scenario. Empty without points.
[[nodiscard]] std::string serve_finding(const Scenario& scenario,
                                        const std::vector<ServeResult>& results);

}  // namespace kvsim
