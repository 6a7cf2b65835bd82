#pragma once

#include <algorithm>
#include <cstdint>

#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// Deviations of a run's times from the predicted ones, by source of error.
struct TimeFactors {
  double decode = 1;     // of iterations without prompt tokens
  double prefill = 1;    // of iterations with prompt tokens
  double front_end = 1;  // of the API server's times
  Seconds request{};     // added to a request's path to the engine
  Seconds sequence{};    // added per decoding sequence of an iteration

  [[nodiscard]] static TimeFactors all(double factor) { return {factor, factor, factor}; }
  /// Returns the time of an iteration that is predicted to take `time`. Added times may be
  /// negative; at least a tenth of the scaled prediction remains.
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
  /// Combines both: factors multiply, added times add up.
  friend TimeFactors operator*(const TimeFactors& a, const TimeFactors& b) {
    return {a.decode * b.decode, a.prefill * b.prefill, a.front_end * b.front_end,
            a.request + b.request, a.sequence + b.sequence};
  }
  friend bool operator==(const TimeFactors&, const TimeFactors&) = default;
};

/// Corrections to a service's predicted times from a benchmark of it (`kvsim calibrate
/// --from-bench`).
struct ServiceCalibration {
  TimeFactors times{};
  /// Standard deviations of log(measured / predicted) that remain at other loads, for a metric that
  /// is proportional to iteration times.
  double ttft_error = 0, tpot_error = 0, e2e_error = 0, throughput_error = 0;
  std::int64_t runs = 0;  // number of runs of the benchmark
};

}  // namespace kvsim
