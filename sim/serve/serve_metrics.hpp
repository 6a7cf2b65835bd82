#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// A duration that stands for several.
struct WeightedTime {
  SimTime time{};
  std::int64_t times = 0;
};

/// Exact order statistics of a sample of durations, in seconds; `sample` is reordered.
[[nodiscard]] Distribution distribution_of(std::vector<SimTime>& sample);
[[nodiscard]] Distribution distribution_of(std::vector<WeightedTime>& sample);

/// Gaps between the tokens of completed requests, each iteration's once with the number of
/// sequences that waited for it. Spans of one request stand in the order of time.
[[nodiscard]] std::vector<WeightedTime> token_gaps(
    std::span<const TokenSpan> spans, const std::vector<std::vector<SimTime>>& iteration_ends,
    std::span<const RequestOutcome> outcomes);

/// Whether a request completed within all bounds. One that generates nothing has its answer when it
/// ends, and its time per token, as that of one token alone, is 0.
[[nodiscard]] bool keeps(const SloSpec& slo, const RequestOutcome& outcome);

/// Fills counts, times, rates and goodput of `result` from its outcomes, spans and iteration ends.
///
///   TTFT = first token - arrival        queue = first in a batch - arrival
///   E2E  = finish - arrival             TPOT  = (finish - first token) / (output - 1)
///
/// of completed requests; TTFT of those that generate anything, TPOT of those that generate at
/// least two tokens. The makespan goes from the first arrival to the last finish.
void measure(ServeResult& result, const SloSpec& slo);

/// Fills of result.replicas[r], which are there, what outcomes and spans tell: those completed,
/// tokens made, distributions. Spans may name replicas that completed none of their requests.
void measure_replicas(ServeResult& result);

/// The percentile of requests whose times tables and figures show: of 50, 90, 95 and 99, which
/// results have, the least that reaches `attainment`.
[[nodiscard]] int shown_percentile(double attainment);
/// Its value: Distribution::p90 of 90.
[[nodiscard]] double value_at(const Distribution& times, int percentile);

}  // namespace kvsim
