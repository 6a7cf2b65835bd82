#pragma once

// --print-command, --manifest and --from-command of `kvsim run` and `kvsim plan`.

#include <string>
#include <vector>

#include "sim/cli/options/arguments.hpp"
#include "sim/report/launch/launch_report.hpp"

namespace kvsim {

/// `arguments` with the options of --from-command's command; options that are given win. Without
/// --from-command as they are. What of the command is not simulated is noted on standard error,
/// unless --quiet. Errors: InputError "--from-command: …".
[[nodiscard]] Arguments with_command_options(Arguments arguments);

/// Whether --print-command or --manifest is given.
[[nodiscard]] bool asks_for_launch(const Arguments& arguments);

/// Prints them as commands, as --json, or as a manifest. Errors: InputError where a manifest is
/// requested of several.
void write_launches(const Arguments& arguments, const std::vector<NamedLaunch>& launches);

}  // namespace kvsim
