#pragma once

// Error against bytes held, and against bytes read.

#include <string>
#include <vector>

#include "sim/report/figure/figure.hpp"

namespace kvsim {

/// A method at one budget.
struct ErrorMark {
  std::string method{};
  double error = 0;         // mean relative error of the attention output
  double held = 0;          // bytes held at the end relative to the full cache
  double read = 0;          // bytes read in decode steps relative to the full cache; 0: unknown
  bool reads_part = false;  // reads only part of the entries that it holds
};

/// Adds "error_vs_bytes", and "error_vs_read" if a method reads only part of what it holds. The
/// legend lists marks that are exact to rounding, because they have no position on a logarithmic
/// axis.
void add_error_figures(const std::vector<ErrorMark>& marks, const std::string& about,
                       FigureSet& set);

}  // namespace kvsim
