#pragma once

#include "sim/report/figure/figure.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// Figures of static batches: peak memory and throughput over length, HBM by owner, cache per
/// layer.
void add_static_figures(const RunReport& report, FigureSet& set);

}  // namespace kvsim
