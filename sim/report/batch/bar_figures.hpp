#pragma once

#include "sim/report/figure/figure.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// Adds the figures with one bar per point: HBM by owner at the peak. If no point decodes (there is
/// no length axis): cache sizes next to the published sizes.
void add_bar_figures(const RunReport& report, FigureSet& set);

}  // namespace kvsim
