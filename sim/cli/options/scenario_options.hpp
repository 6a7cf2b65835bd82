#pragma once

// The options of `kvsim run` and `kvsim plan`, and the scenario key that each of them sets.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/units/error.hpp"
#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// An option that sets a scenario key.
struct ScenarioFlag {
  /// The scenarios that have the key. With --rate a scenario is a service, otherwise a static
  /// batch.
  enum class Of : std::uint8_t { kBoth, kBatches, kServices };

  std::string_view name;
  std::string_view pointer;  // of its key, without list indices
  Of of = Of::kBoth;
  bool is_of_plans = false;  // a key of "plan"
};

[[nodiscard]] std::span<const ScenarioFlag> scenario_flags();

/// The options of commands that run a scenario: the results folder (with help `out`), --json (which
/// prints `schema`), the options that set scenario keys, and --print-scenario.
[[nodiscard]] std::vector<Option> scenario_command_options(std::string out,
                                                           std::string_view schema);

/// Replaces the pointer in an `error` of a scenario made from options by the typed option:
/// "options: /gpu: unknown GPU" becomes "--gpu: unknown GPU".
[[nodiscard]] InputError named_by_option(const InputError& error, const Arguments& arguments);

}  // namespace kvsim
