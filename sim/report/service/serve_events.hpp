#pragma once

#include <cstddef>
#include <string>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// The timeline of every replica of every point as Chrome trace events, which Perfetto
/// (ui.perfetto.dev) and chrome://tracing open: a process a replica, its iterations as slices, and
/// counters of running and waiting requests and of HBM by owner. Thinned to about `most_events`,
/// evenly; within a process times never fall.
/// Source: "Trace Event Format", Google 2016; times in microseconds.
[[nodiscard]] std::string serve_events_json(const RunReport& report,
                                            std::size_t most_events = 60'000);

}  // namespace kvsim
