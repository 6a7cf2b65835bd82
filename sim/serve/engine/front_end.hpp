#pragma once

// Inside of sim/serve: the API server of one replica.

#include <algorithm>
#include <cstdint>

#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"

namespace kvsim {

/// One process that does a piece of work after the other, in the order in which they come: it
/// parses and tokenizes requests, and streams the tokens of each iteration. It runs next to the
/// engine, so that only requests and tokens wait for it. Calls must come in the order of time.
class FrontEnd {
 public:
  FrontEnd() = default;
  explicit FrontEnd(const FrontEndTimes& times) : times_{times} {}

  /// When a request of `prompt` tokens that a client sends at `now` reaches the engine.
  [[nodiscard]] SimTime admit(SimTime now, std::int32_t prompt) {
    return work(now, times_.request + times_.prompt_token * static_cast<double>(prompt)) +
           to_sim_time(times_.latency);
  }
  /// When clients have the last of `tokens` tokens that an iteration made that ended at `now`.
  [[nodiscard]] SimTime deliver(SimTime now, std::int64_t tokens) {
    return work(now, times_.token * static_cast<double>(tokens));
  }

 private:
  SimTime work(SimTime now, Seconds takes) {
    if (takes == Seconds{}) return std::max(now, free_);
    free_ = std::max(now, free_) + to_sim_time(takes);
    return free_;
  }

  FrontEndTimes times_{};
  SimTime free_{};
};

}  // namespace kvsim
