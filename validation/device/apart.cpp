#include "validation/device/apart.hpp"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvsim {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void refuse(const char* call) {
  throw std::runtime_error{fmt::format("{}: {}", call, std::strerror(errno))};
}

/// Sets up a child process: it dies with its parent and on an interrupt.
void begin_child() {
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  (void)std::signal(SIGINT, SIG_DFL);
  (void)std::signal(SIGTERM, SIG_DFL);
}

pid_t fork_child() {
  std::fflush(nullptr);  // buffered output would be written twice
  const pid_t child = fork();
  if (child < 0) refuse("fork");
  return child;
}

ChildEnd child_end(int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    return {.why = fmt::format("signal {} ({})", signal, strsignal(signal)),
            .interrupted = signal == SIGINT || signal == SIGTERM};
  }
  if (const int code = WEXITSTATUS(status); code != 0) {
    return {.why = fmt::format("exit status {}", code)};
  }
  return {};
}

ChildEnd wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) {
    if (errno != EINTR) refuse("waitpid");
  }
  return child_end(status);
}

ChildEnd kill_after(pid_t child, std::chrono::milliseconds waited, const char* what) {
  (void)kill(child, SIGKILL);
  (void)wait_for(child);
  return {.why = fmt::format("{} {:.1f} s", what, std::chrono::duration<double>(waited).count())};
}

void write_line(int to, const std::string& line) {
  const std::string whole = line + "\n";
  std::size_t done = 0;
  while (done < whole.size()) {
    const ssize_t n = write(to, whole.data() + done, whole.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) refuse("write");
    done += static_cast<std::size_t>(n);
  }
}

}  // namespace

ChildEnd run_apart(const std::function<void(const std::function<void(const std::string&)>&)>& work,
                   const std::function<void(std::string_view)>& hear,
                   std::chrono::milliseconds patience) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) refuse("pipe2");
  const pid_t child = fork_child();
  if (child == 0) {
    begin_child();
    close(ends[0]);
    int code = 0;
    try {
      work([to = ends[1]](const std::string& line) { write_line(to, line); });
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      code = 1;
    }
    std::fflush(nullptr);
    _exit(code);  // without running the parent's exit handlers
  }
  close(ends[1]);
  std::string buffer;
  std::array<char, 65536> piece{};
  ChildEnd end;
  for (;;) {
    pollfd ready{.fd = ends[0], .events = POLLIN, .revents = 0};
    const int n_ready = poll(&ready, 1, static_cast<int>(patience.count()));
    if (n_ready < 0 && errno == EINTR) continue;
    if (n_ready == 0) {
      end = kill_after(child, patience, "nothing heard for");
      break;
    }
    const ssize_t n = read(ends[0], piece.data(), piece.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      end = wait_for(child);
      break;
    }
    buffer.append(piece.data(), static_cast<std::size_t>(n));
    std::size_t begin = 0;
    for (std::size_t at = buffer.find('\n'); at != std::string::npos;
         at = buffer.find('\n', begin)) {
      hear(std::string_view{buffer}.substr(begin, at - begin));
      begin = at + 1;
    }
    buffer.erase(0, begin);
  }
  close(ends[0]);
  return end;
}

ChildEnd run_program(const std::vector<std::string>& words, const std::filesystem::path& out,
                     std::chrono::milliseconds limit) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork_child();
  if (child == 0) {
    begin_child();
    const int to = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (to < 0 || dup2(to, STDOUT_FILENO) < 0) _exit(126);
    execvp(arguments.front(), arguments.data());
    _exit(127);
  }
  const Clock::time_point last = Clock::now() + limit;
  for (;;) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) return child_end(status);
    if (ended < 0 && errno != EINTR) refuse("waitpid");
    if (Clock::now() >= last) return kill_after(child, limit, "stopped after");
    std::this_thread::sleep_for(std::chrono::milliseconds{20});
  }
}

}  // namespace kvsim
