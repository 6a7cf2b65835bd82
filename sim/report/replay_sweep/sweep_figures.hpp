#pragma once

#include "sim/report/figure/figure.hpp"
#include "sim/report/replay_sweep/replay_sweep.hpp"

namespace kvsim {

/// Mean error against bytes with the Pareto front: a line per combination of parameters over the
/// budgets (or, if there are many combinations at one budget, over the last parameter's values).
/// For each parameter and method that has it, error against its value: lines for numbers, bars for
/// words. With several traces, the means are shown, with bars of one standard deviation if there
/// are few lines. If a parameter's figure would have more lines than can be distinguished, the
/// other parameters are those of the budget's best combination. Pure.
[[nodiscard]] FigureSet sweep_figures(const ReplaySweep& sweep);

}  // namespace kvsim
