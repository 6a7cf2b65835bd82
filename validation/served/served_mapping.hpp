#pragma once

#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/scenario/fields/document.hpp"
#include "validation/served/served_runs.hpp"
#include "validation/served/served_settings.hpp"
#include "validation/served/served_tables.hpp"
#include "validation/served/served_workload.hpp"

namespace kvsim {

/// A run as a scenario, or the reason why it cannot be expressed.
struct MappedRun {
  std::string refused;              // empty if expressed
  nlohmann::ordered_json scenario;  // of one of the run's equal engines
  const ServedClient* client = nullptr;
  std::vector<Override> overrides{};  // of the scenario
  ServedSettings settings;
  ServedWorkload workload;
  bool complete = false;  // everything that determines times and memory is stated
  [[nodiscard]] bool is_expressed() const { return refused.empty(); }
};

/// Maps the columns of a run to a scenario by general rules. Errors: InputError for an invalid file
/// of requests or lengths.
[[nodiscard]] MappedRun map_served_run(const ServedRun& run, const ServedFolders& folders);

}  // namespace kvsim
