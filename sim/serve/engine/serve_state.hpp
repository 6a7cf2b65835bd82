#pragma once

// Internal to sim/serve: state shared by the engines of one service.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sim/serve/cache/active_array.hpp"
#include "sim/serve/cache/sequence.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/time_factors.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Requests by index, in flat arrays. Schedulers have access to `sequences` only.
struct ServeState {
  explicit ServeState(const RequestTrace& of);

  void arrive(RequestId id, SimTime now);
  /// Records a token of `id` from `iteration` of `replica`, which ended at `at`.
  void token(RequestId id, std::int32_t replica, std::int32_t iteration, SimTime at) {
    TokenSpan& s = open[static_cast<std::size_t>(id)];
    if (s.count > 1 && s.iteration(s.count) == iteration && s.replica == replica) {  // most
      ++s.count;
      return;
    }
    if (s.count > 0 && s.replica == replica) {
      const std::int32_t gap = iteration - s.last();
      if (s.count == 1 && gap <= max_stride) s.stride = static_cast<std::int16_t>(gap);
      if (gap == s.stride) {
        ++s.count;
        return;
      }
    }
    new_span(id, replica, iteration, at);
  }
  /// Returns whether the last token() of `id` belongs to a span of consecutive iterations, or is
  /// its first.
  [[nodiscard]] bool is_steady(RequestId id) const {
    return open[static_cast<std::size_t>(id)].stride == 1;
  }
  /// Equivalent to token() in each of the `count` iterations after its last; requires is_steady().
  void steady_tokens(RequestId id, std::int32_t count) {
    open[static_cast<std::size_t>(id)].count += count;
  }
  /// Records `count` tokens of one iteration.
  void tokens(RequestId id, std::int32_t replica, std::int32_t iteration, std::int32_t count,
              SimTime at) {
    if (count == 1) return token(id, replica, iteration, at);
    new_span(id, replica, iteration, at);
    open[static_cast<std::size_t>(id)].count = count;
    open[static_cast<std::size_t>(id)].stride = 0;
  }
  /// Ends request `id` and appends it to `ended`.
  void end(RequestId id, RequestStatus status, SimTime at);
  /// Releases `id`, which has ended and is no longer used. If it was the last of its group,
  /// releases the group's elements here and returns the group.
  [[nodiscard]] std::optional<std::size_t> release(RequestId id);
  void oom(SimTime at, RequestId id, std::string what, Bytes requested, Bytes free,
           const Owners& owners, std::string message = {});

  const RequestTrace* trace;
  ActiveArray<Sequence> sequences;   // since their arrival
  ActiveArray<std::int32_t> output;  // tokens that each generates; hidden from schedulers
  std::vector<RequestOutcome> outcomes;
  ActiveArray<TokenSpan> open;              // per request; count 0: none
  std::vector<TokenSpan> spans;             // closed
  ActiveArray<std::int32_t> computed_once;  // tokens computed before a preemption
  std::vector<RequestId> ended;             // since the run last checked
  std::vector<ServeOom> ooms;               // the first 16
  std::int64_t oom_events = 0, preemptions = 0, recomputed = 0;
  std::int64_t drafted = 0, accepted = 0, verifications = 0;
  std::int64_t prefix_hits = 0, prefix_queries = 0;  // tokens
  std::int64_t truncated_requests = 0;  // requests that end at the engine's longest sequence
  std::int32_t arrived = 0;
  TimeFactors factors{};
  std::int32_t max_stride = 1;  // of spans: batches may alternate in a pipeline

 private:
  std::vector<std::int32_t> released_;  // released requests per group
  void new_span(RequestId id, std::int32_t replica, std::int32_t iteration, SimTime at);
};

}  // namespace kvsim
