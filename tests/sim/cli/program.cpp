#include "tests/sim/cli/program.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/files.hpp"

namespace kvsim::test {
namespace {

/// In the child: redirects the streams and executes kvsim.
[[noreturn]] void become_kvsim(const std::vector<std::string>& arguments,
                               const std::filesystem::path& folder, Stdout where,
                               const std::filesystem::path& out, const std::filesystem::path& err) {
  constexpr int kCannotStart = 99;
  const int err_file = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  ::dup2(err_file, 2);
  if (where == Stdout::kClosed) {
    ::close(1);
  } else if (where == Stdout::kGone) {
    int ends[2] = {};
    if (::pipe(ends) != 0) ::_exit(kCannotStart);
    ::close(ends[0]);
    ::dup2(ends[1], 1);
  } else {
    const char* name = where == Stdout::kFull ? "/dev/full" : out.c_str();
    ::dup2(::open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
  }
  if (::chdir(folder.c_str()) != 0) ::_exit(kCannotStart);
  std::vector<std::string> words{KVSIM_PROGRAM};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(KVSIM_PROGRAM, argv.data());
  ::_exit(kCannotStart);
}

/// `prepare` is called in the child before it executes kvsim.
template <class Prepare>
Outcome run_prepared(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                     Stdout where, const Prepare& prepare) {
  std::filesystem::create_directories(folder);
  // ctest runs cases in parallel: file names contain the process id.
  const std::string mine = std::to_string(::getpid());
  const auto out = folder / ("stdout." + mine);
  const auto err = folder / ("stderr." + mine);
  const pid_t child = ::fork();
  if (child == 0) {
    prepare();
    become_kvsim(arguments, folder, where, out, err);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  constexpr int kSignalBase = 128;
  Outcome outcome{
      .status = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status),
      .out = where == Stdout::kCaptured ? text_of(out) : "",
      .err = text_of(err)};
  std::filesystem::remove(out);
  std::filesystem::remove(err);
  return outcome;
}

}  // namespace

Outcome run_kvsim(const std::vector<std::string>& arguments, const std::filesystem::path& folder,
                  Stdout where) {
  return run_prepared(arguments, folder, where, [] {});
}

Outcome run_kvsim_up_to(std::int64_t file_bytes, const std::vector<std::string>& arguments,
                        const std::filesystem::path& folder) {
  return run_prepared(arguments, folder, Stdout::kCaptured, [file_bytes] {
    const auto max = static_cast<rlim_t>(file_bytes);
    const rlimit limit{.rlim_cur = max, .rlim_max = max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  });
}

Outcome interrupt_kvsim(const std::vector<std::string>& arguments,
                        const std::filesystem::path& folder, int signal) {
  const auto streams = folder.parent_path() / (folder.filename().string() + ".streams");
  std::filesystem::create_directories(streams);
  const auto under_way = [&] {
    std::error_code status;  // folders may appear and disappear meanwhile
    std::filesystem::recursive_directory_iterator at{folder, status};
    for (; !status && at != decltype(at){}; at.increment(status)) {
      if (at->path().filename().string().find(".partial-") != std::string::npos) return true;
    }
    return false;
  };
  const pid_t child = ::fork();
  if (child == 0) {
    become_kvsim(arguments, folder, Stdout::kCaptured, streams / "out", streams / "err");
  }
  int status = 0;
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (under_way()) {
      ::kill(child, signal);
      ::waitpid(child, &status, 0);
      break;
    }
  }
  constexpr int kSignalBase = 128;
  return {.status = WIFEXITED(status) ? WEXITSTATUS(status) : kSignalBase + WTERMSIG(status),
          .out = "",
          .err = text_of(streams / "err")};
}

}  // namespace kvsim::test
