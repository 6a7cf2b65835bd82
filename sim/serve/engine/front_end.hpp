#pragma once

// Internal to sim/serve: the API server of one replica.

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "models/stack/engine_defaults.hpp"
#include "models/units/units.hpp"
#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/time_factors.hpp"

namespace kvsim {

/// One process of an API server. Its event loop runs one task at a time, in the order in which
/// tasks became ready. A request's work has several turns. Each turn waits for all tasks that
/// became ready before it, so that requests that arrive together go through their turns together
/// and reach the engine together.
///
/// Tokens wait for the turns that are ready when they arrive, and for earlier tokens. A turn waits
/// for the tokens of at most one iteration: a stream sends one token each time the loop reaches it,
/// and a server slower than its engine only queues more of them. Calls must be in chronological
/// order.
class EventLoop {
 public:
  struct Done {
    RequestId request = 0;
    SimTime at{};
  };

  /// Adds a request whose `work` takes `turns`.
  void arrive(RequestId request, SimTime now, SimTime work, std::int32_t turns);
  /// Returns when clients receive tokens whose delivery takes `work`.
  [[nodiscard]] SimTime deliver(SimTime now, SimTime work);
  /// Returns the next request whose last turn ended by `now`.
  [[nodiscard]] std::optional<RequestId> take(SimTime now);
  /// Lower bound of the time of the next finished request if nothing else arrives; nullopt if there
  /// is none.
  [[nodiscard]] std::optional<SimTime> next() const;

 private:
  struct Turn {
    RequestId request = -1;  // -1: tokens
    std::int32_t left = 1;   // remaining, including this one
    SimTime takes{}, last{};

    [[nodiscard]] SimTime work() const { return left == 1 ? last : takes; }
    [[nodiscard]] SimTime rest() const { return takes * (left - 1) + last; }  // of all turns
  };
  void push(const Turn& turn);
  void advance(SimTime now);

  std::deque<Turn> ready_;
  SimTime begun_{};              // when the first of `ready_` began
  SimTime queued_{};             // work of all of them
  std::int64_t last_turns_ = 0;  // of these, last turns of their requests
  bool streams_ = false;         // whether one of these is of tokens
  SimTime streamed_{};           // when the tokens that arrived so far are sent
  SimTime iteration_{};          // work of the last iteration's tokens
  std::deque<Done> done_;
};

/// Processes that parse and tokenize requests and stream the tokens of each iteration. They run
/// concurrently with the engine, so that only requests and tokens wait for them. Each handles every
/// n-th request and an equal share of each iteration's tokens. Calls must be in chronological
/// order.
class FrontEnd {
 public:
  FrontEnd() : FrontEnd(FrontEndTimes{}) {}
  explicit FrontEnd(const FrontEndTimes& times);

  /// Scales its times by `factors`; call before the first request.
  void change(const TimeFactors& factors) { times_ = factors.of(times_); }

  /// A client sends a request of `prompt` tokens.
  void arrive(RequestId request, SimTime now, std::int32_t prompt);
  /// Returns the next request that has reached the engine by `now`; nullopt if there is none.
  [[nodiscard]] std::optional<RequestId> take(SimTime now);
  /// Lower bound of the time at which the next request reaches the engine if nothing else arrives;
  /// nullopt if there is none.
  [[nodiscard]] std::optional<SimTime> next() const;
  /// Returns when clients receive the last of the `tokens` tokens of an iteration that ended at
  /// `now`.
  [[nodiscard]] SimTime deliver(SimTime now, std::int64_t tokens);

 private:
  FrontEndTimes times_;
  std::vector<EventLoop> loops_;
  std::size_t next_loop_ = 0;
};

}  // namespace kvsim
