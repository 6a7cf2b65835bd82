#pragma once

#include <cstddef>
#include <string>

#include "sim/run/run_report.hpp"

namespace kvsim {

/// The timeline of every replica of every point as Chrome trace events, for Perfetto
/// (ui.perfetto.dev) and chrome://tracing. Each replica is a process with its iterations as slices
/// and counters of running and waiting requests and of HBM by owner. Thinned evenly to about
/// `max_events`; times within a process are monotonic. Source: "Trace Event Format", Google 2016;
/// times in microseconds.
[[nodiscard]] std::string serve_events_json(const RunReport& report,
                                            std::size_t max_events = 60'000);

}  // namespace kvsim
