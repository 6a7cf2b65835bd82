#include "sim/cli/process/interrupt.hpp"

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
std::atomic<std::size_t> n_last_words{0};  // 0: empty
static_assert(std::atomic<std::size_t>::is_always_lock_free, "a signal handler reads it");

std::atomic<bool> taken_down{false};  // whether a StopOnInterrupt exists
std::atomic<int> first_signal{0};     // received during its lifetime; 0: none
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler writes it");

std::string quoted_line;  // set once, before any thread
std::vector<std::string> all_words;

void end_by(int number) {
  int none = 0;
  if (taken_down.load() && number != SIGHUP && first_signal.compare_exchange_strong(none, number)) {
    constexpr std::string_view kLine =
        "\nkvsim: interrupted; finishing work in progress (interrupt again to stop at once)\n";
    // The result of the write has no effect.
    if (::write(STDERR_FILENO, kLine.data(), kLine.size()) < 0) first_signal = number;
    return;
  }
  // A second signal on another thread waits for the first to end the program.
  while (ending.exchange(true)) ::pause();
  remove_temporaries();
  const std::size_t n = n_last_words.load();
  // The result of the write has no effect.
  if (n > 0 && ::write(STDERR_FILENO, last_words.data(), n) < 0) n_last_words = 0;
  // The signal is blocked until this returns; then the default action reports it to the parent.
  (void)::signal(number, SIG_DFL);
  (void)::raise(number);
}

void set_last_words(std::string_view text) {
  n_last_words = 0;  // a concurrent signal prints nothing
  std::copy(text.begin(), text.end(), last_words.begin());
  n_last_words = text.size();
}

}  // namespace

OnInterrupt::OnInterrupt(std::string_view line) : before_{last_words.data(), n_last_words.load()} {
  // The terminal's line may show a progress bar.
  set_last_words(fmt::format("\n{}\n", line.substr(0, 500)));
}

OnInterrupt::~OnInterrupt() { set_last_words(before_); }

StopOnInterrupt::StopOnInterrupt() { taken_down = true; }
StopOnInterrupt::~StopOnInterrupt() { taken_down = false; }
bool StopOnInterrupt::is_requested() { return first_signal.load() != 0; }

int interrupted_status() {
  constexpr int kSignalBase = 128;
  return kSignalBase + first_signal.load();
}

void remember_command_line(std::span<const std::string> words) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=,:+@%";
  all_words.assign(words.begin(), words.end());
  quoted_line = "kvsim";
  for (const std::string& word : words) {
    quoted_line += ' ';
    if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) {
      quoted_line += word;
      continue;
    }
    quoted_line += '\'';
    for (const char c : word) {
      if (c == '\'') {
        quoted_line += "'\\''";
      } else {
        quoted_line += c;
      }
    }
    quoted_line += '\'';
  }
}
std::string command_line() { return quoted_line; }
const std::vector<std::string>& command_words() { return all_words; }

std::string missing_traces_line(std::size_t missing, std::size_t all) {
  return fmt::format("kvsim: {} of {} traces {} missing; to compute everything: {}\n", missing, all,
                     missing == 1 ? "is" : "are", quoted_line);
}

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
