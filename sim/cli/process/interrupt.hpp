#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Installs handlers for SIGINT, SIGTERM and SIGHUP that remove temporary files (see
/// models/units/temporary.hpp) and then end the program by the same signal: exit statuses 130, 143
/// and 129 in a shell. Signals that are ignored at program start (nohup) remain ignored.
void clean_up_on_signals();

/// During its lifetime, such a signal first writes a line to standard error: the remaining files
/// and how to continue with them. The line is cut at 500 bytes. The most recent object's line is
/// used.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::string_view line);
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

 private:
  std::string before_;  // the previous line
};

/// During its lifetime, the first SIGINT or SIGTERM is recorded instead of ending the program, so
/// that finished work can be written. A second one ends the program at once, as SIGHUP does. Only
/// one object may exist at a time.
class StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

  /// Whether a signal was recorded. Thread-safe.
  [[nodiscard]] static bool is_requested();
};

/// Thrown by a progress callback to stop work. Caught by the function that started the work.
struct Interrupted {};

/// The exit status of an interrupted command that wrote partial results: 128 + the signal number.
[[nodiscard]] int interrupted_status();

/// "kvsim: K of N traces are missing; to compute everything: COMMAND", for traces not run due to an
/// interrupt.
[[nodiscard]] std::string missing_traces_line(std::size_t missing, std::size_t all);

/// Stores the command line of main; command_line() returns it quoted for a shell.
void remember_command_line(std::span<const std::string> words);
[[nodiscard]] std::string command_line();
/// The words of main's command line without the program's name.
[[nodiscard]] const std::vector<std::string>& command_words();

}  // namespace kvsim
