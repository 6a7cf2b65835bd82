#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

namespace kvsim {

/// A progress bar on a terminal (stderr by default). It appears after one second of work and is
/// erased at the end. Writes nothing if the descriptor is not a terminal. There is no colour if
/// NO_COLOR is set and not empty or TERM is "dumb". update() may be called from several threads.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  /// `what` is the text before the bar; `total` units of `unit` ("points", "layers") give the rate.
  /// 0: no rate is shown.
  explicit Progress(std::string what, double total = 0, std::string unit = "", int descriptor = 2);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the total if it is known only after the work has begun.
  void expect(double total, std::string unit);
  /// `fraction` in [0, 1] done. Redraws at most ten times a second.
  void update(double fraction);
  /// Erases the bar; later updates write nothing.
  void finish();

 private:
  std::string what_;
  double total_;
  std::string unit_;
  int descriptor_;
  bool on_ = false;
  bool plain_ = false;  // no escape sequences
  bool colour_ = false;
  bool drawn_ = false;
  Clock::time_point started_;
  Clock::time_point last_drawn_;
  std::mutex mutex_;
};

/// The text of a bar: `what [#####-----]  50 %  3.2 layers/s  12 s left`, at most `width` columns.
/// Pure, so that it can be tested.
[[nodiscard]] std::string progress_line(const std::string& what, double fraction, double elapsed_s,
                                        double total, const std::string& unit, std::size_t width,
                                        bool colour);

}  // namespace kvsim
