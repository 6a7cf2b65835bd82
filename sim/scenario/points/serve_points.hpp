#pragma once

#include <filesystem>
#include <vector>

#include "models/json/field.hpp"
#include "sim/scenario/points/axes.hpp"
#include "sim/scenario/points/points.hpp"

namespace kvsim {

/// Checks the form of the keys in `keys` that are specific to services. Errors: InputError.
void check_serve_keys(const Field& keys, const std::filesystem::path& folder);

/// Adds the points of one group: the product of its lists in the order model, gpu, gpu_count,
/// stack, calibration, dtype, kv_dtype, pipeline_parallel, cluster, speculation, scheduler,
/// requests, method; the last changes fastest. Each workload is read or generated once and shared.
/// Errors: InputError.
void add_serve_points(const Group& group, const PointsInput& in, InlineDefinitions& own,
                      std::vector<ScenarioPoint>& points);

}  // namespace kvsim
