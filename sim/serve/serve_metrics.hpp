#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// A duration and how often it occurs.
struct WeightedTime {
  SimTime time{};
  std::int64_t times = 0;
};

/// Exact order statistics of a sample of durations, in seconds; `sample` is reordered.
[[nodiscard]] Distribution distribution_of(std::vector<SimTime>& sample);
[[nodiscard]] Distribution distribution_of(std::vector<WeightedTime>& sample);

/// A gap between tokens of `times` sequences that ends with an iteration of a replica.
struct TokenGap {
  std::int32_t replica = 0, iteration = 0;
  SimTime time{};
  std::int64_t times = 0;
  bool is_pause = false;  // between two spans of a request
};
/// Calls `see` for all gaps between the tokens of completed requests. Spans of one request must be
/// in chronological order.
void for_token_gaps(std::span<const TokenSpan> spans,
                    const std::vector<std::vector<SimTime>>& iteration_ends,
                    std::span<const RequestOutcome> outcomes,
                    const std::function<void(const TokenGap&)>& see);

/// Inputs of for_token_gaps.
struct TokenTimes {
  std::span<const TokenSpan> spans;
  const std::vector<std::vector<SimTime>>& iteration_ends;
  std::span<const RequestOutcome> outcomes;
};
/// Gaps between the tokens of completed requests: one per iteration, with the number of sequences
/// that waited for it.
[[nodiscard]] std::vector<WeightedTime> token_gaps(const TokenTimes& of);
/// Returns the distribution of these gaps, equal to distribution_of(token_gaps(of)), without
/// building the list.
[[nodiscard]] Distribution gap_distribution(const TokenTimes& of);

/// Returns whether a request completed within all bounds. The TTFT of a request without output
/// tokens is its E2E; its time per token is 0, as with a single output token.
[[nodiscard]] bool keeps(const SloSpec& slo, const RequestOutcome& outcome);

/// Returns measured value / bound of a completed request for TTFT, TPOT and E2E; 0 without a bound.
[[nodiscard]] std::array<double, 3> slo_shares(const SloSpec& slo, const RequestOutcome& outcome);

/// Fills counts, times, rates and goodput of `result` from its outcomes, spans and iteration ends.
///
///   TTFT = first token - arrival        queue = first in a batch - arrival
///   E2E  = finish - arrival             TPOT  = (finish - first token) / (output - 1)
///
/// Times are of completed requests: TTFT of those with at least one output token, TPOT of those
/// with at least two. The makespan ranges from the first arrival to the last finish.
void measure(ServeResult& result, const SloSpec& slo);

/// Fills the members of the existing result.replicas[r] that are derived from outcomes and spans:
/// completed requests, generated tokens, distributions. Spans may refer to replicas that completed
/// no request.
void measure_replicas(ServeResult& result);

/// Returns the percentile that tables and figures show: the smallest of 50, 90, 95 and 99 (the
/// percentiles in results) that is at least `attainment`.
[[nodiscard]] int shown_percentile(double attainment);
/// Returns the value at a percentile: Distribution::p90 for 90.
[[nodiscard]] double value_at(const Distribution& times, int percentile);

}  // namespace kvsim
