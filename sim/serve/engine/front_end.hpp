#pragma once

// Inside of sim/serve: the API server of one replica.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"
#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/time_factors.hpp"

namespace kvsim {

/// One process of an API server: its event loop runs one piece of work at a time, in the order in
/// which they became ready. A request's work has several turns. Its next turn waits for all that
/// became ready before, so that requests that come together go through their turns together and
/// reach the engine together.
///
/// Tokens wait for the turns that are ready when they come, and for the tokens before them. A turn
/// waits for the tokens of one iteration at most: a stream sends one token whenever the loop comes
/// to it, and a server slower than its engine only has more of them waiting. Calls must come in the
/// order of time.
class EventLoop {
 public:
  struct Done {
    RequestId request = 0;
    SimTime at{};
  };

  /// A request whose `work` takes `turns`.
  void arrive(RequestId request, SimTime now, SimTime work, std::int32_t turns);
  /// When clients have tokens that take `work`.
  [[nodiscard]] SimTime deliver(SimTime now, SimTime work);
  /// The next request whose last turn ended by `now`.
  [[nodiscard]] std::optional<RequestId> take(SimTime now);
  /// No request is done before, if nothing else comes; nullopt: there is none.
  [[nodiscard]] std::optional<SimTime> next() const;

 private:
  struct Turn {
    RequestId request = -1;  // -1: tokens
    std::int32_t left = 1;   // turns with this one
    SimTime takes{}, last{};

    [[nodiscard]] SimTime work() const { return left == 1 ? last : takes; }
    [[nodiscard]] SimTime rest() const { return takes * (left - 1) + last; }  // of all turns
  };
  void push(const Turn& turn);
  void advance(SimTime now);

  std::deque<Turn> ready_;
  SimTime begun_{};              // when the first of `ready_` began
  SimTime queued_{};             // work of all of them
  std::int64_t last_turns_ = 0;  // of them, the last ones of their requests
  bool streams_ = false;         // of them, whether one is of tokens
  SimTime streamed_{};           // when the tokens that came so far are sent
  SimTime iteration_{};          // work of the last iteration's tokens
  std::deque<Done> done_;
};

/// Processes that parse and tokenize requests and stream the tokens of each iteration. They run
/// next to the engine, so that only requests and tokens wait for them. Each takes every n-th
/// request and an equal share of each iteration's tokens. Calls must come in the order of time.
class FrontEnd {
 public:
  FrontEnd() : FrontEnd(FrontEndTimes{}) {}
  explicit FrontEnd(const FrontEndTimes& times);

  /// As if its times had been off by `factors`; before the first request.
  void change(const TimeFactors& factors) { times_ = factors.of(times_); }

  /// A client sends a request of `prompt` tokens.
  void arrive(RequestId request, SimTime now, std::int32_t prompt);
  /// The next request that has reached the engine by `now`; nullopt: no other has.
  [[nodiscard]] std::optional<RequestId> take(SimTime now);
  /// No request reaches the engine before, if nothing else comes; nullopt: none is here.
  [[nodiscard]] std::optional<SimTime> next() const;
  /// When clients have the last of `tokens` tokens that an iteration made that ended at `now`.
  [[nodiscard]] SimTime deliver(SimTime now, std::int64_t tokens);

 private:
  FrontEndTimes times_;
  std::vector<EventLoop> loops_;
  std::size_t next_loop_ = 0;
};

}  // namespace kvsim
