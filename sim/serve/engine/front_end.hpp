#pragma once

// Inside of sim/serve: the API server of one replica.

#include <algorithm>
#include <cstdint>

#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"
#include "sim/serve/time_factors.hpp"

namespace kvsim {

/// Processes that parse and tokenize requests in the order in which they come, and stream the
/// tokens of each iteration. They run next to the engine, so that only requests and tokens wait for
/// them. An event loop takes turns: tokens wait for the piece of work at hand, not for all requests
/// that came before them. Several processes have equal shares of the requests and of each
/// iteration's tokens. Left out: requests wait longer while tokens are streamed. Calls must come in
/// the order of time.
class FrontEnd {
 public:
  FrontEnd() = default;
  explicit FrontEnd(const FrontEndTimes& times) : times_{times} {}

  /// As if its times had been off by `factors`.
  void change(const TimeFactors& factors) { times_ = factors.of(times_); }

  /// When a request of `prompt` tokens that a client sends at `now` reaches the engine.
  [[nodiscard]] SimTime admit(SimTime now, std::int32_t prompt) {
    const Seconds takes = times_.request + times_.prompt_token * static_cast<double>(prompt);
    // Of n processes, each takes every n-th request: together they take one in an n-th of the time,
    // and this one is at work for all of its time.
    const SimTime share = to_sim_time(takes * (1.0 / times_.servers));
    admitted_ = std::max(now, admitted_) + share;
    return admitted_ + (to_sim_time(takes) - share) + to_sim_time(times_.latency);
  }
  /// When clients have the last of `tokens` tokens that an iteration made that ended at `now`.
  [[nodiscard]] SimTime deliver(SimTime now, std::int64_t tokens) {
    const SimTime at_hand =
        std::min(std::max(admitted_ - now, SimTime{}), to_sim_time(times_.request));
    const Seconds takes = times_.token * (static_cast<double>(tokens) / times_.servers);
    streamed_ = std::max(now + at_hand, streamed_) + to_sim_time(takes);
    return streamed_;
  }

 private:
  FrontEndTimes times_{};
  SimTime admitted_{}, streamed_{};  // when what came so far is done
};

}  // namespace kvsim
