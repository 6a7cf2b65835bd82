#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "sim/memory/vllm_log.hpp"
#include "sim/memory/vllm_startup.hpp"
#include "sim/scenario/fields/document.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// The lines of a start come first, so a log of months of requests need not be read into memory in
/// full.
inline constexpr std::size_t kLongestLog = 256U << 20U;

/// A scenario that can be read again with other values.
struct ScenarioSource {
  std::string name;  // in messages
  std::function<Scenario(const std::vector<Override>&)> read;
};

/// An engine's start according to its log or its metric vllm:cache_config_info, as keys of a
/// scenario.
struct LogStart {
  VllmLog said;                                // as logged; its notes and warnings are in `log`
  VllmLog log;                                 // with values derived from the scenario's start
  nlohmann::ordered_json overrides;            // memory and engine: overrides of a scenario
  std::optional<EngineStartup> before, after;  // of the scenario's first point, without and with
                                               // the overrides
};

/// `place`: the log's name in messages. Without `scenario`, returns only the values in the log.
/// Errors: InputError as in read_vllm_log, complete_from_pool and reading of the scenario; also if
/// its first point has no paged cache.
[[nodiscard]] LogStart start_of_log(std::string_view text, const std::string& place,
                                    const std::optional<ScenarioSource>& scenario);

}  // namespace kvsim
