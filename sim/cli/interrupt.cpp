#include "sim/cli/interrupt.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <string>

#include <fmt/format.h>
#include <signal.h>
#include <unistd.h>

#include "models/units/temporary.hpp"

namespace kvsim {
namespace {

constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP};
std::atomic<bool> ending{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

std::array<char, 512> last_words{};
std::atomic<std::size_t> n_last_words{0};  // 0: there are none
static_assert(std::atomic<std::size_t>::is_always_lock_free, "a signal handler reads it");

void end_by(int number) {
  // A second signal on another thread waits for the first to end the program.
  while (ending.exchange(true)) ::pause();
  remove_temporaries();
  const std::size_t n = n_last_words.load();
  // What comes of it changes nothing any more.
  if (n > 0 && ::write(STDERR_FILENO, last_words.data(), n) < 0) n_last_words = 0;
  // Blocked until this returns, then the default action: the parent sees which signal it was.
  (void)::signal(number, SIG_DFL);
  (void)::raise(number);
}

}  // namespace

OnInterrupt::OnInterrupt(std::string_view line) {
  // A bar of progress may stand on the line.
  const std::string text = fmt::format("\n{}\n", line.substr(0, 500));
  std::copy(text.begin(), text.end(), last_words.begin());
  n_last_words = text.size();
}

OnInterrupt::~OnInterrupt() { n_last_words = 0; }

void clean_up_on_signals() {
  struct sigaction action = {};
  action.sa_handler = end_by;
  sigemptyset(&action.sa_mask);
  for (const int number : kEndingSignals) sigaddset(&action.sa_mask, number);
  for (const int number : kEndingSignals) {
    struct sigaction before = {};
    if (::sigaction(number, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    (void)::sigaction(number, &action, nullptr);
  }
}

}  // namespace kvsim
