#pragma once

// The options of `kvsim run` and `kvsim plan`, and the key of a scenario that each one sets.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/error.hpp"
#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// An option that is a key of a scenario.
struct ScenarioFlag {
  /// Which scenarios have the key: with --rate a scenario is a service, without it a static batch.
  enum class Of : std::uint8_t { kBoth, kBatches, kServices };

  std::string_view name;
  std::string_view pointer;  // of its key; list indices are left out
  Of of = Of::kBoth;
  bool is_of_plans = false;  // a key of "plan"
};

[[nodiscard]] std::span<const ScenarioFlag> scenario_flags();

/// What commands that work through a scenario take: where results go, as `out` says, and with which
/// `schema` --json answers; the options that are keys of a scenario, and --print-scenario.
[[nodiscard]] std::vector<Option> scenario_command_options(std::string out,
                                                           std::string_view schema);

/// `error` of a scenario made of options, with the option that was typed in place of the pointer:
/// "options: /gpu: unknown GPU" is "--gpu: unknown GPU".
[[nodiscard]] InputError named_by_option(const InputError& error, const Arguments& arguments);

}  // namespace kvsim
