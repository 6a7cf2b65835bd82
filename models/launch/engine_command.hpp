#pragma once

// An engine's command line, read by its list of arguments.

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
  std::string typed;                // as it is written
  bool is_on = true;                // false: --no-NAME
  std::string key;                  // of --NAME.key VALUE: "key"
  std::vector<std::string> values;  // none of flags and switches
};

struct EngineCommand {
  const EngineFlags* engine = nullptr;
  EngineVersion version{};
  std::string model;
  std::vector<std::pair<std::string, std::string>> environment;  // NAME=VALUE in front
  std::vector<GivenFlag> flags;

  /// The last one given of the flag called `name`; nullptr: it is not given.
  [[nodiscard]] const GivenFlag* find(std::string_view name) const;
};

/// The engine whose server `words` start; nullptr: none is known.
[[nodiscard]] const EngineFlags* engine_of_command(const std::vector<std::string>& words);

/// `words` as the engine of `version` reads them. `strict`: flags must be certain to exist at that
/// version. Errors: InputError "PLACE: …" for a command that is no known server's, an unknown flag
/// (with the nearest, or the versions that have it), and a missing or wrong value.
[[nodiscard]] EngineCommand parse_engine_command(const std::vector<std::string>& words,
                                                 EngineVersion version, std::string_view place,
                                                 bool strict = false);

/// The integer that a count is: "32K" is 32,768 and "32k" 32,000; nullopt: it is none ("auto").
[[nodiscard]] std::optional<std::int64_t> count_of_flag(std::string_view text);

}  // namespace kvsim
