#pragma once

// How figures name their lines and bars: by their differences, while the title has what they share.

#include <cstddef>
#include <string>
#include <vector>

#include "sim/report/text/point_names.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

struct LineNames {
  std::vector<std::string> labels;  // of each point, no two the same
  /// "budget 20 %, score exec fused_two_pass": what every point has that has such a key at all;
  /// empty where there is nothing of that kind.
  std::string shared;
};

/// Names for points that are equal in all surrounding keys, or differ among those only in lengths
/// that the figure has an axis for. A parameter that some methods do not have is no difference
/// between those that have it.
[[nodiscard]] LineNames line_names(const Scenario& scenario,
                                   const std::vector<std::size_t>& points);

/// Point groups with such labels; what a group's points share is in its description, and in its
/// heading where it has one.
[[nodiscard]] std::vector<PointGroup> figure_groups(const Scenario& scenario,
                                                    const std::vector<std::string>& shared_keys);

/// "20 %" of the cache, or "18,000 entries".
[[nodiscard]] std::string budget_text(double budget);

}  // namespace kvsim
