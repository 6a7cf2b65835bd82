#include "models/units/text_file.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "models/units/error.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void cannot_read(const fs::path& path, std::string_view why) {
  throw InputError{fmt::format("{}: cannot be read: {}", path.string(), why)};
}
[[noreturn]] void cannot_read(const fs::path& path, int error) {
  cannot_read(path, std::string_view{std::strerror(error)});
}

std::string_view kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

class Descriptor {
 public:
  /// Without O_NONBLOCK, opening a pipe without a writer would block forever.
  explicit Descriptor(const fs::path& path)
      : number_{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)} {
    if (number_ < 0) cannot_read(path, errno);
  }
  ~Descriptor() { ::close(number_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int number() const { return number_; }

 private:
  int number_;
};

/// Returns the number of bytes read, at most `size`; 0 at the end.
std::size_t read_some(const fs::path& path, int file, char* into, std::size_t size) {
  for (;;) {
    const ssize_t got = ::read(file, into, size);
    if (got >= 0) return static_cast<std::size_t>(got);
    if (errno == EAGAIN) {  // a pipe with a slow writer
      pollfd waiting{.fd = file, .events = POLLIN, .revents = 0};
      (void)::poll(&waiting, 1, -1);
    } else if (errno != EINTR) {
      cannot_read(path, errno);
    }
  }
}

/// As read_some, for a pipe that may not have a writer yet.
std::size_t read_first(const fs::path& path, int file, char* into, std::size_t size) {
  using Clock = std::chrono::steady_clock;
  constexpr auto kPatience = std::chrono::seconds{5};
  constexpr int kPauseMs = 20;
  const auto until = Clock::now() + kPatience;
  for (;;) {
    if (const std::size_t got = read_some(path, file, into, size); got > 0) return got;
    if (Clock::now() >= until) cannot_read(path, "it is a pipe that no program writes to");
    (void)::poll(nullptr, 0, kPauseMs);
  }
}

}  // namespace

std::string read_text_file(const fs::path& path, std::size_t max) {
  // A pipe can be read only once, but some texts are needed again: a scenario, for example, is read
  // again after its overrides were checked.
  static std::mutex mutex;
  static std::map<std::pair<dev_t, ino_t>, std::string> pipes;
  const Descriptor file{path};
  struct stat status {};
  if (::fstat(file.number(), &status) != 0) cannot_read(path, errno);
  const bool is_pipe = S_ISFIFO(status.st_mode);
  std::unique_lock<std::mutex> lock{mutex, std::defer_lock};
  if (is_pipe) {
    lock.lock();
    const auto read = pipes.find({status.st_dev, status.st_ino});
    if (read != pipes.end()) return read->second;
  }
  if (!is_pipe && !S_ISREG(status.st_mode)) {
    cannot_read(path, fmt::format("expected a file, got {}", kind_of(status.st_mode)));
  }
  const auto refuse_size = [&] {
    throw InputError{path.string(), fmt::format("a file of at most {} bytes", max), "a larger one"};
  };
  const auto size = static_cast<std::uint64_t>(is_pipe ? 0 : status.st_size);
  if (size > max) refuse_size();
  constexpr std::size_t kPiece = 1U << 16U;
  std::string text;
  // One byte more than the file size, so that the end is detected without another read.
  text.resize(std::max<std::size_t>(kPiece, static_cast<std::size_t>(size) + 1));
  std::size_t filled = 0;
  for (;;) {
    const bool first = is_pipe && filled == 0;
    const std::size_t got = (first ? read_first : read_some)(
        path, file.number(), text.data() + filled, text.size() - filled);
    if (got == 0) break;
    filled += got;
    if (filled > max) refuse_size();
    if (filled == text.size()) text.resize(text.size() * 2);
  }
  text.resize(filled);
  if (is_pipe) pipes.emplace(std::pair{status.st_dev, status.st_ino}, text);
  return text;
}

void expect_regular_file(const fs::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) cannot_read(path, errno);
  if (!S_ISREG(status.st_mode)) {
    cannot_read(path, fmt::format("expected a file, got {}", kind_of(status.st_mode)));
  }
}

}  // namespace kvsim
