#pragma once

#include "sim/report/figure/figure.hpp"
#include "sim/report/replay_sweep/replay_sweep.hpp"

namespace kvsim {

/// Mean error against bytes with the Pareto front, a line for each combination of parameters over
/// the budgets (or, of many combinations at one budget, over the last parameter's values); and for
/// each parameter and method that has it error against its value: lines over numbers, bars over
/// words. Of several traces the means, with bars of one standard deviation where lines are few. If
/// a parameter's figure would have more lines than can be distinguished, the other parameters are
/// those of the budget's best combination. Pure.
[[nodiscard]] FigureSet sweep_figures(const ReplaySweep& sweep);

}  // namespace kvsim
