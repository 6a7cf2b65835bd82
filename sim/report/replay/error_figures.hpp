#pragma once

// Error against bytes: which methods are worth their memory, or their traffic.

#include <string>
#include <vector>

#include "sim/report/figure/figure.hpp"

namespace kvsim {

/// A method at one budget.
struct ErrorMark {
  std::string method{};
  double error = 0;         // mean relative error of the attention's output
  double held = 0;          // bytes held at the end over the full cache's
  double read = 0;          // bytes read in decode steps over the full cache's; 0: not known
  bool reads_part = false;  // of what it holds
};

/// Adds "error_vs_bytes", and "error_vs_read" where a method reads part of what it holds. Marks
/// that are exact to rounding are named in the legend: a logarithmic axis has no place for them.
void add_error_figures(const std::vector<ErrorMark>& marks, const std::string& about,
                       FigureSet& set);

}  // namespace kvsim
