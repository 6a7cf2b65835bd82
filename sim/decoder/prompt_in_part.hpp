#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/methods/prefill_axis.hpp"
#include "sim/decoder/decoder.hpp"
#include "traces/trace.hpp"

namespace kvsim {

/// A prompt of which a method computes a part: chunks, each of which went through the model
/// separately, followed by tokens that are in no chunk.
struct PromptInPart {
  std::span<const std::int32_t> tokens;
  std::span<const std::int64_t>
      starts;               // of chunks, ascending from 0; required only by prefill=blend
  std::int64_t reused = 0;  // total tokens of all chunks
};

/// Computes keys and values of a prompt by layer under `rule`, laid out by head for the prompt's
/// tokens. prefill=blend chooses the tokens of chunks that go through the layers from its check
/// layer; all other tokens go through all layers. Other rules skip pairs in the attention of every
/// head.
[[nodiscard]] std::vector<TraceRows> rows_in_part(const Decoder& decoder,
                                                  const PromptInPart& prompt,
                                                  const PrefillRule& rule);

}  // namespace kvsim
