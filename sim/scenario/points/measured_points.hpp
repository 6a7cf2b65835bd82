#pragma once

#include "sim/replay/replay.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Replays the traces that points of `scenario` are `measured_on`, once per method and parameters.
/// Sets the measured laws of the points, the cache bytes they need and a note that names the trace.
/// The seed is the scenario's; only threads and progress of `options` are used. Errors: InputError
/// if a trace cannot be read.
void measure_laws(Scenario& scenario, ReplayOptions options);

}  // namespace kvsim
