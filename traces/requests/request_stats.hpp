#pragma once

#include <cstdint>
#include <optional>

#include "models/units/units.hpp"
#include "traces/requests/request.hpp"

namespace kvsim {

/// Summary of lengths in tokens; quantiles are interpolated linearly.
struct LengthSummary {
  std::int64_t total = 0;
  double mean = 0.0, p50 = 0.0, p90 = 0.0, p99 = 0.0;
  std::int32_t min = 0, max = 0;
};

/// Prefix reuse in an unbounded cache: blocks in each prompt's leading run that an earlier request
/// of the trace has brought.
struct PrefixSummary {
  std::int32_t block = 0;  // tokens
  std::int64_t blocks = 0;
  std::int64_t distinct = 0;
  std::int64_t reusable = 0;
};

struct RequestStats {
  std::int64_t requests = 0;
  std::int64_t waiting = 0;  // of these, requests that wait for another one (`after`)
  Seconds span{0.0};         // first to last arrival of those that do not wait
  std::int64_t distinct_arrivals = 0;
  std::optional<double> rate{};              // of the same (arrival_rate); absent without a span
  std::optional<double> inter_arrival_cv{};  // standard deviation / mean of the times between them
  LengthSummary prompt{}, output{};
  std::int64_t zero_outputs = 0;
  std::int64_t declared = 0;  // requests with a max_tokens
  std::int64_t sessions = 0;
  std::optional<PrefixSummary> prefix{};
};

/// Requests per second among those that wait for no other: number of gaps over the time from the
/// first to the last, so that n requests spaced one second apart have a rate of 1/s. nullopt if
/// fewer than two do not wait, or if all arrive simultaneously.
[[nodiscard]] std::optional<double> arrival_rate(const RequestTrace& trace);

[[nodiscard]] RequestStats summarise_requests(const RequestTrace& trace);

}  // namespace kvsim
