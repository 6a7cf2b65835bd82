#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "models/gpu/gpu.hpp"
#include "models/llm/llm.hpp"
#include "validation/served/served_runs.hpp"
#include "validation/served/served_tables.hpp"

namespace kvsim {

/// Thrown for a run that no scenario can express, with a reason that is equal for all such runs.
struct NotExpressed {
  std::string reason;
};

/// Machine and engine of a run as keys of a scenario.
struct ServedSettings {
  nlohmann::ordered_json keys;  // model, gpu, gpu_count, stack, dtype, …
  const ServedEngine* engine = nullptr;
  const Llm* llm = nullptr;
  const Gpu* gpu = nullptr;
  EngineVersion release{};
  std::string version;  // "0.11.1", or "0.10 (by date)"
  /// Number of equal engines behind one endpoint, each with its share of the requests. 1 if `keys`
  /// has a cluster.
  std::int32_t replicas = 1;
  std::vector<std::string> assumed;  // assumptions for values that the run does not state
  std::vector<std::string> ignored;  // options that no key of a scenario expresses
};

/// Returns the model called `name`, by general rules for releases of one architecture: the
/// publisher, the tuning ("-Instruct", "-it"), the quantisation and the date of a release do not
/// change it. Null if unknown. Errors: NotExpressed for a model whose shape was changed.
[[nodiscard]] const Llm* find_served_llm(std::string_view name);

/// Reads the columns that describe machine and engine. Errors: NotExpressed.
[[nodiscard]] ServedSettings served_settings(const ServedRun& run, const ServedClient& client);

}  // namespace kvsim
