#pragma once

#include "sim/replay/replay.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// Replays the traces that points of `scenario` are `measured_on`, once per method and parameters.
/// Sets the measured laws of the points, their cache bytes and a note that names the trace. Uses
/// the scenario's seed; of `options`, only threads and progress. Errors: InputError if a trace
/// cannot be read.
void measure_laws(Scenario& scenario, ReplayOptions options);

}  // namespace kvsim
