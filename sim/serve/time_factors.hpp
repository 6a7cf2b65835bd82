#pragma once

#include <algorithm>
#include <cstdint>

#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// How the times of a whole run differ from the predicted ones, by what may be wrong about them.
struct TimeFactors {
  double decode = 1;     // of iterations without prompt tokens
  double prefill = 1;    // of iterations with prompt tokens
  double front_end = 1;  // of what the API server takes
  Seconds request{};     // added to a request's way to the engine
  Seconds sequence{};    // added to an iteration for each sequence that decodes

  [[nodiscard]] static TimeFactors all(double factor) { return {factor, factor, factor}; }
  /// An iteration that is predicted to take `time`. What is added may be below 0: a tenth of the
  /// predicted time is always left.
  [[nodiscard]] Seconds iteration(Seconds time, bool prefills, std::int64_t decodes) const {
    constexpr double kMin = 0.1;
    const double factor = prefills ? prefill : decode;
    if (sequence == Seconds{}) return time * factor;
    return std::max(time * (kMin * factor),
                    time * factor + sequence * static_cast<double>(decodes));
  }
  [[nodiscard]] FrontEndTimes of(FrontEndTimes times) const {
    for (Seconds* time : {&times.latency, &times.request, &times.prompt_token, &times.token}) {
      *time = *time * front_end;
    }
    times.latency = std::max(Seconds{}, times.latency + request);
    return times;
  }
  /// Both: factors multiply, what is added adds up.
  friend TimeFactors operator*(const TimeFactors& a, const TimeFactors& b) {
    return {a.decode * b.decode, a.prefill * b.prefill, a.front_end * b.front_end,
            a.request + b.request, a.sequence + b.sequence};
  }
  friend bool operator==(const TimeFactors&, const TimeFactors&) = default;
};

/// What a benchmark of a service says of its times, beyond what is predicted (`kvsim calibrate
/// --from-bench`).
struct ServiceCalibration {
  TimeFactors times{};
  /// Standard deviations of log(measured / predicted) that are left at other loads, of a metric as
  /// sensitive as its iterations.
  double ttft_error = 0, tpot_error = 0, e2e_error = 0, throughput_error = 0;
  std::int64_t runs = 0;  // of the benchmark
};

}  // namespace kvsim
