#pragma once

#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>
#include <sys/types.h>

namespace kvsim {

/// A Python process that runs python_scorer.py with a user's class, one request at a time. Its
/// standard output is this process's standard error. It ends with this object, at the latest with
/// this process.
class PythonChild {
 public:
  /// `who`: prefix of error messages. Errors: InputError if the process cannot be started.
  PythonChild(std::string interpreter, const std::string& file, const std::string& kind,
              std::string who);
  ~PythonChild();
  PythonChild(const PythonChild&) = delete;
  PythonChild& operator=(const PythonChild&) = delete;

  /// Sets the prefix of subsequent error messages.
  void complain_as(std::string who) { who_ = std::move(who); }

  /// Returns the header of the reply and its `count` doubles. `arrays` are sent after `header`,
  /// which contains their shapes. Thread-safe. Errors: InputError if the process ends, or does not
  /// reply within $KVSIM_SCORE_TIMEOUT seconds (600).
  std::pair<nlohmann::json, std::vector<double>> ask(
      const nlohmann::json& header, std::span<const std::span<const float>> arrays = {});

 private:
  void send(std::string_view bytes);
  void receive(char* to, std::size_t count);
  [[noreturn]] void fail(const std::string& why);
  /// Waits at most a second for the process, then ends it. Returns a description of its end.
  std::string end();

  std::mutex guard_;
  std::string interpreter_, who_;
  int link_ = -1;
  pid_t process_ = -1;
  int timeout_ms_ = 0;
  std::string failure_;  // why it no longer runs; empty while it runs
};

}  // namespace kvsim
