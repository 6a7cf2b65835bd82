#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// From here on SIGINT, SIGTERM and SIGHUP first remove what is under construction (see
/// models/units/temporary.hpp) and then end the program as they would have: exit statuses 130, 143
/// and 129 in a shell. One that was ignored when the program began (nohup) stays ignored.
void clean_up_on_signals();

/// While it lives, such a signal first writes a line to standard error: what is left behind, and
/// how to go on with it. At most 500 bytes of it. Of several the youngest speaks.
class OnInterrupt {
 public:
  explicit OnInterrupt(std::string_view line);
  ~OnInterrupt();
  OnInterrupt(const OnInterrupt&) = delete;
  OnInterrupt& operator=(const OnInterrupt&) = delete;

 private:
  std::string before_;  // what was to be written until then
};

/// While it lives, the first SIGINT or SIGTERM is taken down instead of ending the program, so that
/// what is done can be written; a second one ends it at once, as do all signals otherwise. One at a
/// time.
class StopOnInterrupt {
 public:
  StopOnInterrupt();
  ~StopOnInterrupt();
  StopOnInterrupt(const StopOnInterrupt&) = delete;
  StopOnInterrupt& operator=(const StopOnInterrupt&) = delete;

  /// Whether one came; of any thread.
  [[nodiscard]] static bool is_requested();
};

/// Ends work in the middle, from a progress callback. Caught by the function that started the work.
struct Interrupted {};

/// The exit status of a command that was interrupted and wrote what it had: 128 and the signal.
[[nodiscard]] int interrupted_status();

/// "kvsim: K of N traces are missing; all of them: COMMAND", of those that an interrupt left.
[[nodiscard]] std::string missing_traces_line(std::size_t missing, std::size_t all);

/// The command line, quoted for a shell, as main was called.
void remember_command_line(std::span<const std::string> words);
[[nodiscard]] std::string command_line();
/// The words of the command line as main was called, without the program's name.
[[nodiscard]] const std::vector<std::string>& command_words();

}  // namespace kvsim
