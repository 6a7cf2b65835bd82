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

/// A word after `kvsim` (or two: "trace info"): what it does, what it takes, and the function that
/// does it.
struct Command {
  std::string_view name;
  std::string_view summary;   // one line of `kvsim help`
  std::string_view usage;     // lines after "usage:"
  std::string_view examples;  // command lines that work
  std::vector<Option> options;
  int (*run)(const Arguments& arguments);
};

/// In the order that help shows them.
[[nodiscard]] const std::vector<Command>& commands();
/// The command that `words` begin with. Errors: InputError naming the nearest.
[[nodiscard]] const Command& find_command(std::span<const std::string> words);
/// How many words a command's name has.
[[nodiscard]] std::size_t name_length(const Command& command);
/// Text of `kvsim help` and of `kvsim help COMMAND`.
[[nodiscard]] std::string general_help();
[[nodiscard]] std::string command_help(const Command& command);
/// Of commands of two words, by their first: "trace". Empty where there are none.
[[nodiscard]] std::string group_help(std::string_view first);

// One file each: command_NAME.cpp.
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
