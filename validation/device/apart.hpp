#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// How a child process ended.
struct ChildEnd {
  std::string why;           // empty: as it should, with status 0
  bool interrupted = false;  // by SIGINT or SIGTERM: callers of several runs stop
};

/// Runs `work` in a child process; `hear` receives each of its lines in this one. A child without
/// output for `patience` is killed, also when this process dies. An exception in `work` is printed
/// on stderr and ends it with status 1. This process must not have used CUDA before: a child cannot
/// use its parent's context. Errors: runtime_error if no process can be created.
[[nodiscard]] ChildEnd run_apart(
    const std::function<void(const std::function<void(const std::string& line)>& say)>& work,
    const std::function<void(std::string_view line)>& hear, std::chrono::milliseconds patience);

/// Runs a program (words[0] its path, or a name that PATH has), its standard output in file `out`,
/// for `limit` at most.
[[nodiscard]] ChildEnd run_program(const std::vector<std::string>& words,
                                   const std::filesystem::path& out,
                                   std::chrono::milliseconds limit);

}  // namespace kvsim
