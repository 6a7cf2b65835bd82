#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sim/cli/options/arguments.hpp"

namespace kvsim {

/// Exit statuses of the program.
enum ExitStatus : int { kDone = 0, kDoesNotFit = 1, kBadInput = 2, kInternalFault = 3 };

/// A command, one or two words after `kvsim` ("trace info"): its help, its options, and the
/// function that runs it.
struct Command {
  std::string_view name;
  std::string_view summary;   // one line of `kvsim help`
  std::string_view usage;     // lines after "usage:"
  std::string_view examples;  // complete command lines
  std::vector<Option> options;
  int (*run)(const Arguments& arguments);
};

/// All commands, in the order of the help.
[[nodiscard]] const std::vector<Command>& commands();
/// The command that `words` begin with. Errors: InputError with the nearest command.
[[nodiscard]] const Command& find_command(std::span<const std::string> words);
/// Number of words in a command's name.
[[nodiscard]] std::size_t name_length(const Command& command);
/// Text of `kvsim help` and of `kvsim help COMMAND`.
[[nodiscard]] std::string general_help();
[[nodiscard]] std::string command_help(const Command& command);
/// Help of all two-word commands with this first word ("trace"). Empty if there are none.
[[nodiscard]] std::string group_help(std::string_view first);

// Each is in command_NAME.cpp.
[[nodiscard]] Command run_command();
[[nodiscard]] Command explain_command();
[[nodiscard]] Command replay_command();
[[nodiscard]] Command sweep_command();
[[nodiscard]] Command plan_command();
[[nodiscard]] Command explorer_command();
[[nodiscard]] Command trace_info_command();
[[nodiscard]] Command trace_check_command();
[[nodiscard]] Command trace_generate_command();
[[nodiscard]] Command trace_convert_command();
[[nodiscard]] Command requests_info_command();
[[nodiscard]] Command quality_command();
[[nodiscard]] Command requests_convert_command();
[[nodiscard]] Command requests_generate_command();
[[nodiscard]] Command fit_surrogate_command();
[[nodiscard]] Command calibrate_command();
[[nodiscard]] Command list_command();
[[nodiscard]] Command schema_command();
[[nodiscard]] Command show_command();
[[nodiscard]] Command help_command();

}  // namespace kvsim
