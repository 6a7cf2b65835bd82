#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/sweep/points_file.hpp"
#include "sim/sweep/sweep_plan.hpp"

namespace kvsim {

/// Returns the object of each point of `plan` in the points file `file`; empty if it is not yet
/// done. `version`: version of this program. Errors: InputError naming file and line if the file
/// belongs to another sweep or version, or if a line is not an object of one of its points as made
/// by run_sweep_point.
[[nodiscard]] std::vector<std::string> resumed_points(const PointsContent& content,
                                                      const SweepPlan& plan,
                                                      std::string_view version,
                                                      const std::filesystem::path& file);

}  // namespace kvsim
