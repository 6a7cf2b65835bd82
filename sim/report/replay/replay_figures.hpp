#pragma once

#include "sim/replay/replay.hpp"
#include "sim/report/figure/figure.hpp"

namespace kvsim {

/// Error and bytes held over steps (if the series were kept), cache size per layer (if layers
/// differ), and mean error against bytes, one mark per method and budget: against bytes held, and
/// against bytes read if some method reads only part of what it holds.
[[nodiscard]] FigureSet replay_figures(const ReplayResult& replay);

}  // namespace kvsim
