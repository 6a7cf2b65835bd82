#pragma once

// --print-command, --manifest and --from-command of `kvsim run` and `kvsim plan`.

#include <string>
#include <vector>

#include "sim/cli/options/arguments.hpp"
#include "sim/report/launch/launch_report.hpp"

namespace kvsim {

/// Adds the options of --from-command's command to `arguments`; explicit options take precedence.
/// Returns `arguments` unchanged without --from-command. Notes flags that are not simulated on
/// standard error, unless --quiet. Errors: InputError "--from-command: …".
[[nodiscard]] Arguments with_command_options(Arguments arguments);

/// Whether --print-command or --manifest is given.
[[nodiscard]] bool asks_for_launch(const Arguments& arguments);

/// Prints the launches as commands, as --json, or as a manifest. Errors: InputError if a manifest
/// is requested for several launches.
void write_launches(const Arguments& arguments, const std::vector<NamedLaunch>& launches);

}  // namespace kvsim
