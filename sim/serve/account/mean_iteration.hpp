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
  Seconds mean;                     // time that iterations took, over their number
  std::int64_t decodes = 0;         // sequences that decode, rounded
  std::int64_t prefill_tokens = 0;  // in one chunk behind half of a prompt, rounded
  std::int64_t prompt = 0;          // tokens of the median prompt, which the method is resolved for
  std::int64_t context = 0;         // tokens of a decoding sequence
  /// Of an iteration with these numbers; its time is not `mean`, since times of lines with maxima
  /// do not average, and ends of prompts, where the method compresses, are left out.
  ExplainedStep step;
};

/// nullopt where no iteration ran, or the engine is not one with continuous batches.
[[nodiscard]] std::optional<MeanIteration> mean_iteration(const ServeSpec& spec,
                                                          const ServeResult& result);

}  // namespace kvsim
