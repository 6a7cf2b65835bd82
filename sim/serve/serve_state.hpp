#pragma once

// Inside of sim/serve: what the engines of one service share.

#include <cstdint>
#include <string>
#include <vector>

#include "sim/serve/sequence.hpp"
#include "sim/serve/serve_result.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Requests by index, in flat arrays. Schedulers see `sequences` alone.
struct ServeState {
  explicit ServeState(const RequestTrace& of);

  /// A token of `id` was made in `iteration` of `replica`, which ended `at`.
  void token(RequestId id, std::int32_t replica, std::int32_t iteration, SimTime at) {
    TokenSpan& s = open[static_cast<std::size_t>(id)];
    if (s.count > 0 && s.replica == replica && s.first + s.count == iteration) {
      ++s.count;
      return;
    }
    new_span(id, replica, iteration, at);
  }
  /// Ends what is known of `id`; it stands in `ended` from then on.
  void end(RequestId id, RequestStatus status, SimTime at);
  void oom(SimTime at, RequestId id, std::string what, Bytes requested, Bytes free,
           const Owners& owners);

  const RequestTrace* trace;
  std::vector<Sequence> sequences;
  std::vector<std::int32_t> output;  // tokens each will generate: no scheduler asks
  std::vector<RequestOutcome> outcomes;
  std::vector<TokenSpan> open;              // of each request; count 0: none
  std::vector<TokenSpan> spans;             // closed
  std::vector<std::int32_t> computed_once;  // tokens computed before a preemption
  std::vector<RequestId> ended;             // since the run looked last
  std::vector<ServeOom> ooms;               // the first 16
  std::int64_t oom_events = 0, preemptions = 0, recomputed = 0;
  std::int64_t prefix_hits = 0, prefix_queries = 0;  // tokens
  std::int32_t arrived = 0;

 private:
  void new_span(RequestId id, std::int32_t replica, std::int32_t iteration, SimTime at);
};

}  // namespace kvsim
