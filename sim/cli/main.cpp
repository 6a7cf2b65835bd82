#include <cstddef>
#include <exception>
#include <filesystem>
#include <new>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "sim/cli/options/command.hpp"
#include "sim/cli/process/interrupt.hpp"
#include "sim/cli/process/terminal.hpp"
#include "sim/cli/process/terminal_style.hpp"
#include "sim/cli/version.hpp"
#include "sim/report/text/text.hpp"
#include "sim/report/text/version.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

int dispatch(const std::vector<std::string>& words) {
  if (words.empty()) {
    write_err(general_help());
    return kBadInput;
  }
  const std::string& first = words.front();
  if (first == "--version" || first == "-V" || first == "version") {
    return write_version({words.begin() + 1, words.end()});
  }
  if (first == "--help" || first == "-h") {
    write_out(general_help());
    return kDone;
  }
  if (first.starts_with("-")) {
    throw InputError{
        unknown_name("option", first, std::vector<std::string>{"--help", "--version"})};
  }
  if (words.size() == 2 && (words[1] == "--help" || words[1] == "-h")) {
    if (const std::string group = group_help(first); !group.empty()) {
      write_out(group);
      return kDone;
    }
  }
  const Command& command = find_command(words);
  const std::vector<std::string> rest{
      words.begin() + static_cast<std::ptrdiff_t>(name_length(command)), words.end()};
  for (const std::string& word : rest) {
    if (word == "--") break;
    if (word == "--help" || word == "-h") {
      write_out(command_help(command));
      return kDone;
    }
  }
  const Arguments arguments{std::string{command.name}, command.options, rest};
  choose_colour(arguments.value("color").value_or("auto"));
  // Commands that keep partial results after an interrupt set a different line.
  const OnInterrupt last_words{
      fmt::format("kvsim: interrupted; results are written completely or not at all; to repeat: {}",
                  command_line())};
  try {
    return command.run(arguments);
  } catch (const InputError& error) {
    throw InputError{arguments.in_typed_words(error.what())};
  }
}

/// Prints an error. Messages quote user input, whose control characters could break the terminal.
void complain(std::string_view message) {
  write_err(fmt::format("kvsim: {}\n", clean_text(message)));
}

void report_fault(std::string_view what) {
  complain(fmt::format("internal fault: {}", what));
  write_err(
      fmt::format("This is a bug in kvsim {}, not an error in its input. Please report it with the "
                  "command line, the input files and this message.\n",
                  kvsim_version()));
}

int guarded(int argc, char** argv) {
  try {
    prepare_standard_streams();
    clean_up_on_signals();
    const std::vector<std::string> words{argv + (argc > 0 ? 1 : 0), argv + argc};
    remember_command_line(words);
    return dispatch(words);
  } catch (const InputError& error) {
    complain(error.what());
    return kBadInput;
  } catch (const fs::filesystem_error& error) {
    // The user can fix a path that cannot be read or written.
    complain(fmt::format("{}{}{}", error.path1().string(), error.path1().empty() ? "" : ": ",
                         error.code().message()));
    return kBadInput;
  } catch (const ContractError& error) {
    report_fault(error.what());
  } catch (const std::bad_alloc&) {
    complain("out of memory on this machine: fewer points, or a shorter trace, may fit");
    return kInternalFault;
  } catch (const std::exception& error) {
    report_fault(error.what());
  } catch (...) {
    report_fault("an exception of unknown type");
  }
  return kInternalFault;
}

}  // namespace
}  // namespace kvsim

int main(int argc, char** argv) { return kvsim::guarded(argc, argv); }
