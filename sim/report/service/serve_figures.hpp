#pragma once

#include "sim/report/figure/figure.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// The figures of a run of kind "serve": distributions of TTFT, TPOT, gaps between tokens and whole
/// requests; HBM by owner over time; who runs and who waits; latency against throughput where
/// points differ in the load; what the cache takes against the tokens in service; requests within
/// their bounds. Points of one model, GPU, stack and workload share a figure. Pure.
[[nodiscard]] FigureSet serve_figures(const RunReport& report);

}  // namespace kvsim
