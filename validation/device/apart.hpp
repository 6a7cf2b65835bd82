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
  std::string why;           // empty: normally, with status 0
  bool interrupted = false;  // by SIGINT or SIGTERM: callers of several runs stop
};

/// Runs `work` in a child process; `hear` receives each of its lines in this process. The child is
/// killed after `patience` without output, and when this process dies. An exception in `work` is
/// printed on stderr and ends the child with status 1. This process must not have used CUDA before:
/// a child cannot use its parent's context. Errors: runtime_error if no process can be created.
[[nodiscard]] ChildEnd run_apart(
    const std::function<void(const std::function<void(const std::string& line)>& say)>& work,
    const std::function<void(std::string_view line)>& hear, std::chrono::milliseconds patience);

/// Runs a program (words[0] is its path, or a name found in PATH) for at most `limit`, with its
/// standard output in file `out`.
[[nodiscard]] ChildEnd run_program(const std::vector<std::string>& words,
                                   const std::filesystem::path& out,
                                   std::chrono::milliseconds limit);

}  // namespace kvsim
