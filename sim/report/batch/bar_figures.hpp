#pragma once

#include "sim/report/figure/figure.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// Adds the figures with a bar a point: HBM by owner at the peak; where no point decodes, and so
/// nothing has a length axis, the size of the caches beside the published sizes.
void add_bar_figures(const RunReport& report, FigureSet& set);

}  // namespace kvsim
