#pragma once

// Inside of sim/serve: the API server of one replica.

#include <algorithm>
#include <cstdint>

#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"
#include "sim/serve/time_factors.hpp"

namespace kvsim {

/// One process that parses and tokenizes requests in the order in which they come, and streams the
/// tokens of each iteration. It runs next to the engine, so that only requests and tokens wait for
/// it. Its event loop takes turns: tokens wait for the piece of work at hand, not for all requests
/// that came before them. Left out: requests wait longer while tokens are streamed. Calls must come
/// in the order of time.
class FrontEnd {
 public:
  FrontEnd() = default;
  explicit FrontEnd(const FrontEndTimes& times) : times_{times} {}

  /// As if its times had been off by `factors`.
  void change(const TimeFactors& factors) {
    for (Seconds* time : {&times_.latency, &times_.request, &times_.prompt_token, &times_.token}) {
      *time = *time * factors.front_end;
    }
    times_.latency = std::max(Seconds{}, times_.latency + factors.request);
  }

  /// When a request of `prompt` tokens that a client sends at `now` reaches the engine.
  [[nodiscard]] SimTime admit(SimTime now, std::int32_t prompt) {
    const Seconds takes = times_.request + times_.prompt_token * static_cast<double>(prompt);
    admitted_ = std::max(now, admitted_) + to_sim_time(takes);
    return admitted_ + to_sim_time(times_.latency);
  }
  /// When clients have the last of `tokens` tokens that an iteration made that ended at `now`.
  [[nodiscard]] SimTime deliver(SimTime now, std::int64_t tokens) {
    const SimTime at_hand =
        std::min(std::max(admitted_ - now, SimTime{}), to_sim_time(times_.request));
    const Seconds takes = times_.token * static_cast<double>(tokens);
    streamed_ = std::max(now + at_hand, streamed_) + to_sim_time(takes);
    return streamed_;
  }

 private:
  FrontEndTimes times_{};
  SimTime admitted_{}, streamed_{};  // when what came so far is done
};

}  // namespace kvsim
