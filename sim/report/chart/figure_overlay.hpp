#pragma once

// Figures of several results in one: lines and marks together on the axes that each figure has by
// itself, bars under each other.

#include <span>
#include <string>
#include <vector>

#include "models/units/result.hpp"
#include "sim/report/chart/figure_document.hpp"

namespace kvsim {

/// A chart, and what its lines, marks and bars are said to be of.
struct OverlayPart {
  std::string of;
  const AnyChart* chart = nullptr;
};

/// The parts (two or more) as one chart called `name`; labels begin with the part's name, bounds
/// that all share appear once. If this is impossible, the reason: a kind whose areas or cells would
/// hide each other, different axes, more lines than can be distinguished.
[[nodiscard]] Result<AnyChart, std::string> overlay(const std::string& name,
                                                    std::span<const OverlayPart> parts);

struct FiguresOfResult {
  std::string name;
  std::vector<StoredFigure> figures;
};
struct Overlaid {
  std::vector<AnyChart> charts;
  std::vector<std::string> notes;  // a figure each that is not among them, and why
};
/// Every figure that all results (two or more) have: name by name where they have the same names of
/// a kind, else all of the kind together.
[[nodiscard]] Overlaid overlay_results(std::span<const FiguresOfResult> results);

}  // namespace kvsim
