#pragma once

#include "sim/report/figure/figure.hpp"
#include "sim/run/run_report.hpp"

namespace kvsim {

/// The figures of a run: memory and throughput versus length and, if layers differ, cache size per
/// layer (one line per method; one file per model, GPU, stack, dtype, batch and length), HBM by
/// owner at the peak (one bar per point), cache sizes if no point decodes, and the figures of its
/// replay. If points differ only in length, peak and throughput by final length replace the first
/// two. A figure that would show nothing (one sample, no point) is omitted. Pure.
[[nodiscard]] FigureSet run_figures(const RunReport& report);
/// The figures of `all` that the scenario names, or all of them if it names none.
[[nodiscard]] FigureSet wanted_figures(FigureSet all, const Scenario& scenario);

}  // namespace kvsim
