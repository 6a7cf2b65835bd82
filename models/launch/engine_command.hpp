#pragma once

// An engine's command line, parsed with its list of arguments.

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/launch/flag_lists.hpp"

namespace kvsim {

/// A flag of a command line.
struct GivenFlag {
  const EngineFlag* flag = nullptr;
  std::string typed;                // as written on the command line
  bool is_on = true;                // false: --no-NAME
  std::string key;                  // of --NAME.key VALUE: "key"
  std::vector<std::string> values;  // empty for flags and switches
};

struct EngineCommand {
  const EngineFlags* engine = nullptr;
  EngineVersion version{};
  std::string model;
  std::vector<std::pair<std::string, std::string>> environment;  // NAME=VALUE in front
  std::vector<GivenFlag> flags;

  /// Returns the last occurrence of the flag `name`; nullptr if it is not given.
  [[nodiscard]] const GivenFlag* find(std::string_view name) const;
};

/// Returns the engine whose server `words` start; nullptr if it is unknown.
[[nodiscard]] const EngineFlags* engine_of_command(const std::vector<std::string>& words);

/// Parses `words` as the engine of `version` does. `strict`: flags must be certain to exist in that
/// version. Throws InputError "PLACE: …" if the command is not a known server, for an unknown flag
/// (with the nearest, or the versions that have it), and for a missing or wrong value.
[[nodiscard]] EngineCommand parse_engine_command(const std::vector<std::string>& words,
                                                 EngineVersion version, std::string_view place,
                                                 bool strict = false);

/// Parses a count: "32K" is 32,768 and "32k" 32,000; nullopt if it is not a number ("auto").
[[nodiscard]] std::optional<std::int64_t> count_of_flag(std::string_view text);

}  // namespace kvsim
