#include "sim/cli/process/terminal.hpp"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "models/units/error.hpp"

namespace kvsim {
namespace {

constexpr int kStandardOut = 1;
constexpr int kStandardError = 2;

bool out_was_closed = false;  // at program start; set once, before any thread

/// Returns 0 or the errno of the failure.
int write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return 0;
}

}  // namespace

void prepare_standard_streams() {
  for (const int descriptor : {0, kStandardOut, kStandardError}) {
    if (::fcntl(descriptor, F_GETFD) != -1 || errno != EBADF) continue;
    if (descriptor == kStandardOut) out_was_closed = true;
    // open() returns the lowest free number, which is `descriptor`: lower ones are already open.
    (void)::open("/dev/null", O_RDWR);
  }
  // Both conditions also set errno: a closed pipe, a file larger than `ulimit -f`.
  (void)std::signal(SIGPIPE, SIG_IGN);
  (void)std::signal(SIGXFSZ, SIG_IGN);
}

void write_out(std::string_view text) {
  if (out_was_closed && !text.empty()) {
    throw InputError{"standard output cannot be written: it is closed"};
  }
  const int failure = write_all(kStandardOut, text);
  if (failure != 0 && failure != EPIPE) {
    throw InputError{fmt::format("standard output cannot be written: {}",
                                 std::generic_category().message(failure))};
  }
}

void write_err(std::string_view text) { (void)write_all(kStandardError, text); }

std::size_t terminal_width() {
  constexpr std::size_t kUsual = 80;
  constexpr std::size_t kNarrow = 40;
  constexpr std::size_t kWide = 160;
  winsize size{};
  if (::isatty(kStandardOut) == 0 || ::ioctl(kStandardOut, TIOCGWINSZ, &size) != 0) return kUsual;
  if (size.ws_col == 0) return kUsual;
  return std::clamp<std::size_t>(size.ws_col, kNarrow, kWide);
}

}  // namespace kvsim
