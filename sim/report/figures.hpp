#pragma once

#include <string>
#include <vector>

#include "sim/report/run_report.hpp"

namespace kvsim {

/// A figure before it is drawn: data and a gnuplot script that reads it and writes NAME.svg and
/// NAME.png beside it. `gnuplot NAME.gp` in that folder draws it again.
struct Figure {
  std::string name;    // "memory_vs_length"; a file name without surprises
  std::string title;   // for people
  std::string csv;     // NAME.csv
  std::string script;  // NAME.gp
};

/// The figures of a run: memory and throughput versus length (one file per model and GPU), HBM by
/// owner at the peak, cache size per layer, and those of its replay. A figure that would show
/// nothing (one sample, no point) is left out. Pure.
[[nodiscard]] std::vector<Figure> run_figures(const RunReport& report);

/// Error over steps, bytes held over steps (where the series were kept) and cache size per layer.
[[nodiscard]] std::vector<Figure> replay_figures(const ReplayResult& replay);

}  // namespace kvsim
