#pragma once

#include <cstdint>
#include <optional>

#include "sim/batch/account/time_terms.hpp"
#include "sim/serve/serve_result.hpp"
#include "sim/serve/serve_spec.hpp"

namespace kvsim {

/// The average iteration, and the terms of its time.
struct MeanIteration {
  std::int64_t iterations = 0;
  Seconds mean;                     // total time of iterations / their number
  std::int64_t decodes = 0;         // sequences that decode, rounded
  std::int64_t prefill_tokens = 0;  // in one chunk after half of a prompt, rounded
  std::int64_t prompt = 0;          // tokens of the median prompt, which the method is resolved for
  std::int64_t context = 0;         // tokens of a decoding sequence
  /// Terms of an iteration with these numbers. Its time differs from `mean`: terms with maxima do
  /// not average, and compression at the ends of prompts is left out.
  ExplainedStep step;
};

/// Returns nullopt if no iteration ran or the engine has no continuous batching.
[[nodiscard]] std::optional<MeanIteration> mean_iteration(const ServeSpec& spec,
                                                          const ServeResult& result);

}  // namespace kvsim
