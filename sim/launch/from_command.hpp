#pragma once

// An engine's command line as options of `kvsim plan` and `kvsim run`.

#include <string>
#include <utility>
#include <vector>

#include "models/launch/engine_command.hpp"

namespace kvsim {

/// Options that make the scenario which a command describes.
struct CommandOptions {
  /// Names without dashes and values, empty for switches: {"model", "Qwen/Qwen3-8B"}, {"tp", "2"},
  /// {"set", "/engine/expert_parallel=8"}.
  std::vector<std::pair<std::string, std::string>> options;
  std::vector<std::string> notes;  // flags that are no part of the simulation
};

/// `services`: the scenario is a service; of static batches, flags that only services have are
/// noted. Errors: InputError "PLACE: …" for values that the simulation cannot take.
[[nodiscard]] CommandOptions options_of_command(const EngineCommand& command, bool services,
                                                const std::string& place);

}  // namespace kvsim
