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

/// Fills counts, times, rates and goodput of `result` from its outcomes, spans and iteration ends.
///
///   TTFT = first token - arrival        queue = first in a batch - arrival
///   E2E  = finish - arrival             TPOT  = (finish - first token) / (output - 1)
///
/// of completed requests; TTFT of those that generate anything, TPOT of those that generate at
/// least two tokens. The makespan goes from the first arrival to the last finish.
void measure(ServeResult& result, const SloSpec& slo);

}  // namespace kvsim
