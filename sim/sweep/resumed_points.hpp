#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "sim/sweep/points_file.hpp"
#include "sim/sweep/sweep_plan.hpp"

namespace kvsim {

/// Of each point of `plan` its object, as the points file `file` holds it; empty: not yet done.
/// `version` is this program's. Errors: InputError naming file and line where the file is of
/// another sweep or another version's, or a line is no object of a point of it, as run_sweep_point
/// makes them.
[[nodiscard]] std::vector<std::string> resumed_points(const PointsContent& content,
                                                      const SweepPlan& plan,
                                                      std::string_view version,
                                                      const std::filesystem::path& file);

}  // namespace kvsim
