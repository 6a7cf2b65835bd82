#include "sim/report/text/progress.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "models/units/units_format.hpp"
#include "sim/report/text/text.hpp"

namespace kvsim {
namespace {

constexpr auto kSilence = std::chrono::seconds{1};
constexpr auto kBetween = std::chrono::milliseconds{100};

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view{} : std::string_view{value};
}

std::size_t terminal_width(int descriptor) {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  if (::ioctl(descriptor, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

void put(int descriptor, std::string_view text) {
  // A closed terminal is not a reason to stop the work.
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(n));
  }
}

}  // namespace

std::string progress_line(const std::string& what, double fraction, double elapsed_s, double total,
                          const std::string& unit, std::size_t width, bool colour) {
  fraction = std::isfinite(fraction) ? std::clamp(fraction, 0.0, 1.0) : 0.0;
  std::string tail = fmt::format(" {:3.0f} %", std::floor(fraction * 100));
  if (total > 0 && elapsed_s > 0) {
    tail += fmt::format("  {:.3g} {}/s", fraction * total / elapsed_s, unit);
  }
  if (fraction > 0 && elapsed_s > 0) {
    const double left = elapsed_s * (1 - fraction) / fraction;
    tail += fmt::format("  {} left", to_text(Seconds{std::ceil(left)}));
  }
  constexpr std::size_t kWidestBar = 30;
  constexpr std::size_t kNarrowestBar = 5;
  const std::string head = shortened(clean_text(what), std::max<std::size_t>(width / 3, 1)) + " ";
  const std::size_t text = display_width(head) + display_width(tail) + 2;
  if (text + kNarrowestBar > width) return shortened(head + tail, width);
  const std::size_t cells = std::min(kWidestBar, width - text);
  const auto full = static_cast<std::size_t>(fraction * static_cast<double>(cells));
  return fmt::format("{}[{}{}{}{}]{}", head, colour ? "\x1b[32m" : "", std::string(full, '#'),
                     colour ? "\x1b[0m" : "", std::string(cells - full, '-'), tail);
}

Progress::Progress(std::string what, double total, std::string unit, int descriptor)
    : what_{std::move(what)},
      total_{total},
      unit_{std::move(unit)},
      descriptor_{descriptor},
      on_{::isatty(descriptor) == 1},
      plain_{environment("TERM") == "dumb"},
      colour_{environment("NO_COLOR").empty() && !plain_},
      started_{Clock::now()},
      last_drawn_{started_ - kBetween} {}

Progress::~Progress() { finish(); }

void Progress::expect(double total, std::string unit) {
  const std::lock_guard lock{mutex_};
  total_ = total;
  unit_ = std::move(unit);
}

void Progress::update(double fraction) {
  const std::lock_guard lock{mutex_};
  if (!on_) return;
  const auto now = Clock::now();
  if (now - started_ < kSilence || now - last_drawn_ < kBetween) return;
  last_drawn_ = now;
  drawn_ = true;
  const double elapsed = std::chrono::duration<double>(now - started_).count();
  // One column remains free, so that no terminal wraps the line.
  const std::size_t width = std::max<std::size_t>(terminal_width(descriptor_), 10) - 1;
  const std::string line = progress_line(what_, fraction, elapsed, total_, unit_, width, colour_);
  // The rest of an earlier, longer line: erased, or overwritten with spaces on a plain terminal.
  put(descriptor_, plain_
                       ? fmt::format("\r{}{}", line,
                                     std::string(width - std::min(width, display_width(line)), ' '))
                       : fmt::format("\r{}\x1b[K", line));
}

void Progress::finish() {
  const std::lock_guard lock{mutex_};
  if (on_ && drawn_) {
    put(descriptor_,
        plain_ ? fmt::format("\r{:{}}\r", "", terminal_width(descriptor_) - 1) : "\r\x1b[K");
  }
  on_ = false;
}

}  // namespace kvsim
