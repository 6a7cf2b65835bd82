#pragma once

#include "sim/replay/replay.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Replays the traces that points of `scenario` are `measured_on`, each method once with the
/// parameters of its points, and gives the points the laws that come out, the bytes they want and a
/// note that names the trace. The seed is the scenario's; of `options` threads and progress count.
/// Errors: InputError if a trace cannot be read.
void measure_laws(Scenario& scenario, ReplayOptions options);

}  // namespace kvsim
