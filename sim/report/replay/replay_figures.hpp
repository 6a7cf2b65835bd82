#pragma once

#include "sim/replay/replay.hpp"
#include "sim/report/figure/figure.hpp"

namespace kvsim {

/// Error and bytes held over steps (where the series were kept), cache size per layer (where layers
/// differ), and mean error against bytes, a mark for each method and budget: against bytes held,
/// and against bytes read where some method does not read what it holds.
[[nodiscard]] FigureSet replay_figures(const ReplayResult& replay);

}  // namespace kvsim
