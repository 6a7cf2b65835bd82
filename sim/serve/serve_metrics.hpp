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
  bool is_pause = false;  // from one span of a request to its next
};
/// Calls `see` for all gaps between the tokens of completed requests. Spans of one request are in
/// the order of time.
void for_token_gaps(std::span<const TokenSpan> spans,
                    const std::vector<std::vector<SimTime>>& iteration_ends,
                    std::span<const RequestOutcome> outcomes,
                    const std::function<void(const TokenGap&)>& see);

/// What for_token_gaps reads.
struct TokenTimes {
  std::span<const TokenSpan> spans;
  const std::vector<std::vector<SimTime>>& iteration_ends;
  std::span<const RequestOutcome> outcomes;
};
/// Gaps between the tokens of completed requests: one per iteration, with the number of sequences
/// that waited for it.
[[nodiscard]] std::vector<WeightedTime> token_gaps(const TokenTimes& of);
/// Their distribution, exact as distribution_of(token_gaps(of)), without a list of them.
[[nodiscard]] Distribution gap_distribution(const TokenTimes& of);

/// Whether a request completed within all bounds. A request without output tokens has its answer
/// when it ends; its time per token is 0, as with a single output token.
[[nodiscard]] bool keeps(const SloSpec& slo, const RequestOutcome& outcome);

/// The share of each bound (TTFT, TPOT, E2E) that a completed request takes; 0 where there is none.
[[nodiscard]] std::array<double, 3> slo_shares(const SloSpec& slo, const RequestOutcome& outcome);

/// Fills counts, times, rates and goodput of `result` from its outcomes, spans and iteration ends.
///
///   TTFT = first token - arrival        queue = first in a batch - arrival
///   E2E  = finish - arrival             TPOT  = (finish - first token) / (output - 1)
///
/// of completed requests; TTFT of those that generate anything, TPOT of those that generate at
/// least two tokens. The makespan goes from the first arrival to the last finish.
void measure(ServeResult& result, const SloSpec& slo);

/// Fills those members of the existing result.replicas[r] that follow from outcomes and spans:
/// completed requests, generated tokens, distributions. Spans may name replicas that completed no
/// request.
void measure_replicas(ServeResult& result);

/// The percentile of requests whose times tables and figures show: of 50, 90, 95 and 99, which
/// results have, the least that reaches `attainment`.
[[nodiscard]] int shown_percentile(double attainment);
/// Its value: Distribution::p90 of 90.
[[nodiscard]] double value_at(const Distribution& times, int percentile);

}  // namespace kvsim
