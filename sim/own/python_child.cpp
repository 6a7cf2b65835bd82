#include "sim/own/python_child.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "models/json/embedded.hpp"
#include "models/units/check.hpp"
#include "models/units/error.hpp"
#include "models/units/number_text.hpp"

extern char** environ;  // NOLINT: name from POSIX

namespace kvsim {
namespace embedded {
std::span<const EmbeddedFile> own_scripts();
}
namespace {

constexpr int kChildLink = 3;  // file descriptor of the socket in the child
constexpr double kMaxSeconds = 1e6;

int timeout_ms() {
  const char* text = std::getenv("KVSIM_SCORE_TIMEOUT");  // NOLINT: not modified concurrently
  if (text == nullptr) return 600'000;
  const char* end = text + std::strlen(text);
  double seconds = 0;
  const auto [stop, status] = number_from_chars(text, end, seconds);
  if (status != std::errc{} || stop != end || !(seconds > 0 && seconds <= kMaxSeconds)) {
    throw InputError{"KVSIM_SCORE_TIMEOUT",
                     fmt::format("seconds, above 0 and at most {}", kMaxSeconds),
                     fmt::format("\"{}\"", text)};
  }
  return std::max(static_cast<int>(seconds * 1000), 1);
}

}  // namespace

PythonChild::PythonChild(std::string interpreter, const std::string& file, const std::string& kind,
                         std::string who)
    : interpreter_{std::move(interpreter)}, who_{std::move(who)}, timeout_ms_{timeout_ms()} {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) != 0) {
    throw InputError{fmt::format("{}: no socket: {}", who_, std::strerror(errno))};
  }
  for (const int end : ends) (void)::fcntl(end, F_SETFD, FD_CLOEXEC);
  std::string script{embedded::own_scripts().front().text};
  std::string link_word = std::to_string(kChildLink);
  std::string dash_c = "-c", path = file, name = kind;
  std::array<char*, 7> words{interpreter_.data(), dash_c.data(), script.data(), link_word.data(),
                             path.data(),         name.data(),   nullptr};
  posix_spawn_file_actions_t actions{};
  posix_spawnattr_t attributes{};
  (void)::posix_spawn_file_actions_init(&actions);
  (void)::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  (void)::posix_spawn_file_actions_adddup2(&actions, ends[1], kChildLink);
  // Output of the user's code must not get into a document on standard output.
  (void)::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  (void)::posix_spawnattr_init(&attributes);
  // A separate process group: Ctrl-C reaches only this process, which ends the child.
  (void)::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int error =
      ::posix_spawnp(&process_, interpreter_.c_str(), &actions, &attributes, words.data(), environ);
  (void)::posix_spawn_file_actions_destroy(&actions);
  (void)::posix_spawnattr_destroy(&attributes);
  (void)::close(ends[1]);
  link_ = ends[0];
  if (error != 0) {
    (void)::close(link_);
    throw InputError{
        fmt::format("{}: {} cannot be started: {}", who_, interpreter_, std::strerror(error))};
  }
}

PythonChild::~PythonChild() {
  if (failure_.empty()) (void)end();
}

std::string PythonChild::end() {
  (void)::close(link_);
  int status = 0;
  bool has_ended = false;
  for (int i = 0; i < 100 && !has_ended; ++i) {
    has_ended = ::waitpid(process_, &status, WNOHANG) != 0;
    if (!has_ended) std::this_thread::sleep_for(std::chrono::milliseconds{10});
  }
  if (!has_ended) {
    (void)::kill(process_, SIGKILL);
    (void)::waitpid(process_, &status, 0);
  }
  if (WIFSIGNALED(status)) return fmt::format("signal {}", WTERMSIG(status));
  return fmt::format("exit status {}", WEXITSTATUS(status));
}

void PythonChild::fail(const std::string& why) {
  const std::string how = end();
  failure_ = fmt::format("{}: {} ({})", who_, why, how);
  throw InputError{failure_};
}

void PythonChild::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(link_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("its Python process ended while it received a layer");
    bytes.remove_prefix(static_cast<std::size_t>(n));
  }
}

void PythonChild::receive(char* to, std::size_t count) {
  while (count > 0) {
    pollfd wait{.fd = link_, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&wait, 1, timeout_ms_);
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      (void)::kill(process_, SIGKILL);
      fail(fmt::format("no reply within {:g} s; KVSIM_SCORE_TIMEOUT sets another limit",
                       timeout_ms_ / 1000.0));
    }
    const ssize_t n = ::recv(link_, to, count, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail("its Python process ended without a reply");
    to += n;
    count -= static_cast<std::size_t>(n);
  }
}

std::pair<nlohmann::json, std::vector<double>> PythonChild::ask(
    const nlohmann::json& header, std::span<const std::span<const float>> arrays) {
  const std::scoped_lock lock{guard_};
  if (!failure_.empty()) throw InputError{failure_};
  const std::string text = header.dump();
  const std::uint64_t length = text.size();
  send({reinterpret_cast<const char*>(&length), sizeof length});
  send(text);
  for (const std::span<const float> part : arrays) {
    send({reinterpret_cast<const char*>(part.data()), part.size_bytes()});
  }
  std::uint64_t reply_length = 0;
  receive(reinterpret_cast<char*>(&reply_length), sizeof reply_length);
  std::string reply(reply_length, '\0');
  receive(reply.data(), reply.size());
  nlohmann::json found = nlohmann::json::parse(reply);
  std::vector<double> numbers(found.value("count", std::size_t{0}));
  receive(reinterpret_cast<char*>(numbers.data()), numbers.size() * sizeof(double));
  return {std::move(found), std::move(numbers)};
}

}  // namespace kvsim
