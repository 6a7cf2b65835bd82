#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/methods/prefill_axis.hpp"
#include "sim/decoder/decoder.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// A prompt that a method computes in part: chunks, each of which went through the model
/// separately, then tokens that are in no chunk.
struct PromptInPart {
  std::span<const std::int32_t> tokens;
  std::span<const std::int64_t>
      starts;               // of chunks, ascending from 0; only prefill=blend needs any
  std::int64_t reused = 0;  // tokens of all chunks
};

/// Keys and values of a prompt by layer as `rule` computes them, laid out by head for the prompt's
/// tokens. prefill=blend chooses which tokens of chunks go through the layers from its check layer
/// on; all others do. Other rules leave out pairs of the attention of every head.
[[nodiscard]] std::vector<TraceRows> rows_in_part(const Decoder& decoder,
                                                  const PromptInPart& prompt,
                                                  const PrefillRule& rule);

}  // namespace kvsim
