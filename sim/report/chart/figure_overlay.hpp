#pragma once

// Combines the figures of several results: lines and marks share the axes of the separate figures,
// bars are drawn below each other.

#include <span>
#include <string>
#include <vector>

#include "models/units/result.hpp"
#include "sim/report/chart/figure_document.hpp"

namespace kvsim {

/// A chart, and the name of the result that its lines, marks and bars belong to.
struct OverlayPart {
  std::string of;
  const AnyChart* chart = nullptr;
};

/// Combines the parts (two or more) into one chart called `name`. Labels begin with the part's
/// name; bounds that all parts share appear once. Returns the reason if this is impossible: a kind
/// whose areas or cells would hide each other, different axes, more lines than can be
/// distinguished.
[[nodiscard]] Result<AnyChart, std::string> overlay(const std::string& name,
                                                    std::span<const OverlayPart> parts);

struct FiguresOfResult {
  std::string name;
  std::vector<StoredFigure> figures;
};
struct Overlaid {
  std::vector<AnyChart> charts;
  std::vector<std::string> notes;  // one per figure that is omitted, with the reason
};
/// Combines every figure that all results (two or more) have. Figures are matched by name if the
/// results have the same names of a kind, else all of the kind are combined.
[[nodiscard]] Overlaid overlay_results(std::span<const FiguresOfResult> results);

}  // namespace kvsim
