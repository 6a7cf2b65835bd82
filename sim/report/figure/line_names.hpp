#pragma once

// Labels of lines and bars in figures: the settings that differ. Shared settings are in the title.

#include <cstddef>
#include <string>
#include <vector>

#include "sim/report/text/point_names.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

struct LineNames {
  std::vector<std::string> labels;  // one per point, all different
  /// "budget 20 %, score exec fused_two_pass": the values shared by all points that have the key;
  /// empty if there are none.
  std::string shared;
};

/// Names for points that are equal in all surrounding keys, or differ in them only by lengths that
/// the figure has an axis for. A parameter that some methods do not have is not a difference
/// between the methods that have it.
[[nodiscard]] LineNames line_names(const Scenario& scenario,
                                   const std::vector<std::size_t>& points);

/// Point groups with such labels. The settings that the points of a group share are in its
/// description, and in its heading if it has one.
[[nodiscard]] std::vector<PointGroup> figure_groups(const Scenario& scenario,
                                                    const std::vector<std::string>& shared_keys);

/// "20 %" of the cache, or "18,000 entries".
[[nodiscard]] std::string budget_text(double budget);

}  // namespace kvsim
