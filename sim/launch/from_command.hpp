#pragma once

// Converts an engine's command line to options of `kvsim plan` and `kvsim run`.

#include <string>
#include <utility>
#include <vector>

#include "models/launch/engine_command.hpp"

namespace kvsim {

/// Options for the scenario that a command describes.
struct CommandOptions {
  /// Names without dashes and values, empty for switches: {"model", "Qwen/Qwen3-8B"}, {"tp", "2"},
  /// {"set", "/engine/expert_parallel=8"}.
  std::vector<std::pair<std::string, std::string>> options;
  std::vector<std::string> notes;  // flags that are not simulated
};

/// `services`: the scenario is a service. For static batches, a note lists flags that only services
/// have. Errors: InputError "PLACE: …" for values that the simulation does not support.
[[nodiscard]] CommandOptions options_of_command(const EngineCommand& command, bool services,
                                                const std::string& place);

}  // namespace kvsim
