#pragma once

// The commands that start the engines of a service as simulated.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/launch/flag_lists.hpp"
#include "sim/scenario/scenario.hpp"

namespace kvsim {

/// A file that a command reads.
struct LaunchFile {
  std::string name, text;

  friend bool operator==(const LaunchFile&, const LaunchFile&) = default;
};

/// Identical engines: all engines of a service, or the engines of one role.
struct LaunchRole {
  std::string name;           // "server", "prefill", "decode"
  std::int64_t replicas = 1;  // engines behind the router
  std::int64_t gpus = 1;      // of one engine
  std::vector<std::string> words;
  std::vector<LaunchFile> files;

  friend bool operator==(const LaunchRole&, const LaunchRole&) = default;
};

/// The deployment of one service.
struct Launch {
  const EngineFlags* engine = nullptr;
  std::string version;              // of the engine: "0.30"
  std::string model;                // Hugging Face name or path
  std::string gpu;                  // catalogue name
  std::string router;               // between several engines: "round-robin"; empty: one engine
  std::int64_t checkpoint_gib = 0;  // room for the weights, in GiB
  std::vector<LaunchRole> roles;
  std::vector<std::string> notes;
};

/// The values that a plan chose and that are not in the point: `method` with its budget, `copies`
/// of the service, the longest sequence of static batches.
struct LaunchChoice {
  std::optional<MethodSpec> method{};
  std::int64_t copies = 1;
  std::optional<std::int64_t> sequence_tokens{};
};

/// The launch of `point` with `choice`. Every flag is in the engine's argument list of that
/// version. Errors: InputError for features that the engine does not have: a stack that is not a
/// server, a method, a format, a version before the first list.
[[nodiscard]] Launch launch_of(const ScenarioPoint& point, const LaunchChoice& choice = {});

}  // namespace kvsim
