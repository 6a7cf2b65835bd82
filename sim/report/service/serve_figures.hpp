#pragma once

#include "sim/report/figure/figure.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// The figures of a run of kind "serve": distributions of TTFT, TPOT, ITL and E2E; HBM by owner
/// over time; running and waiting requests; latency against throughput if points differ in load;
/// cache bytes against the tokens in service; requests within their bounds. Points of one model,
/// GPU, stack and workload share a figure. Pure.
[[nodiscard]] FigureSet serve_figures(const RunReport& report);

}  // namespace kvsim
