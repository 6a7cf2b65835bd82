#pragma once

// The objects of a scenario of kind "serve". Each member may be a list; every value makes points.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/json/field.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// One choice of an object's members, in the order of the key table: the name and the value of
/// each.
using Members = std::vector<std::pair<std::string, Field>>;

/// Every combination of the members of `field`, an object named `object` in the key table; the last
/// member changes fastest. `field` may be a list of objects. For "scheduler", a name is short for
/// {"name": …}. Errors: InputError.
[[nodiscard]] std::vector<Members> member_choices(const Field& field, std::string_view object);

/// `engine`: the scenario's `engine`. Limits that the scheduler's keys set under another name are
/// copied to it, and its limits to the scheduler. Errors: InputError, with the place of the member;
/// also if the two set one limit to different values.
[[nodiscard]] SchedulerSpec read_scheduler(const Members& members, StackOptions& engine);
/// Errors: InputError, with the place of the member.
[[nodiscard]] ClusterSpec read_cluster(const Members& members);
[[nodiscard]] SpeculationSpec read_speculation(const Members& members);
[[nodiscard]] SloSpec read_slo(const Field& field);
[[nodiscard]] NvmeSpec read_nvme(const Field& field);
[[nodiscard]] ServiceCalibration read_bench(const Field& field);
[[nodiscard]] OffloadSpec read_offload(const Field& field);

/// Names in scenario files.
[[nodiscard]] std::string_view name_of(QueueOrder order);
[[nodiscard]] std::string_view name_of(RouterPolicy router);

}  // namespace kvsim
