#include "sim/cli/interrupt.hpp"

#include <array>
#include <atomic>

#include <signal.h>
#include <unistd.h>

#include "models/units/temporary.hpp"

namespace kvsim {
namespace {

constexpr std::array kEndingSignals{SIGINT, SIGTERM, SIGHUP};
std::atomic<bool> ending{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

void end_by(int number) {
  // A second signal on another thread waits for the first to end the program.
  while (ending.exchange(true)) ::pause();
  remove_temporaries();
  // Blocked until this returns, then the default action: the parent sees which signal it was.
  (void)::signal(number, SIG_DFL);
  (void)::raise(number);
}

}  // namespace

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
