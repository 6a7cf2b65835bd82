#pragma once

// The commands that start a simulated or planned deployment, as a document.

#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "sim/launch/launch.hpp"
#include "sim/plan/plan.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// A deployment, and the answer that it belongs to.
struct NamedLaunch {
  std::string of;    // "fewest GPUs of llama-3.1-70b, vllm, …"
  std::string name;  // of files and objects
  Launch launch;
};

/// The launch of each point, without repeated launches (equal roles and GPU). Errors: as launch_of.
[[nodiscard]] std::vector<NamedLaunch> point_launches(const Scenario& scenario);
/// The launch of the best candidate of each group that has one. Errors: as launch_of.
[[nodiscard]] std::vector<NamedLaunch> plan_launches(const Scenario& scenario,
                                                     const PlanResult& plan);

/// kvsim.launch/1.
[[nodiscard]] nlohmann::ordered_json launch_document(const std::vector<NamedLaunch>& launches);
/// The manifest of the single launch in `launches`. Errors: InputError "PLACE: expected one
/// deployment, …", or as read_manifest_kind and manifest_text.
[[nodiscard]] std::string launch_manifest(const std::vector<NamedLaunch>& launches,
                                          const std::string& kind, const std::string& place);

}  // namespace kvsim
