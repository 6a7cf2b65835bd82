#pragma once

#include <cstdint>

#include "models/methods/method.hpp"

namespace kvsim {

/// Heads that hold only sinks and recent tokens, even between the chunks of a chunked prompt. In
/// these heads a later chunk attends only to those tokens and to itself (DuoAttention, section on
/// chunked pre-filling; duo_attn/patch/llama.py: the cache of streaming heads is cut after every
/// forward pass, but a piece is attended to in full). A prompt's first piece, and therefore a
/// prompt in one piece, is attended to in full in every head.
struct StreamingHeads {
  double share = 0;          // of the KV heads, mean over layers
  std::int64_t entries = 0;  // maximum that each holds between pieces
};

/// Returns a share of 0 for methods that compress at the prompt's end or later, and for methods
/// that mask evicted entries but keep them in the cache. If `method` provides the size of each
/// head, the share refers to a GPU's `heads` KV heads per layer, assumed to be the longest
/// (heads_held).
[[nodiscard]] StreamingHeads streaming_heads(const Method& method, std::int32_t n_layers,
                                             std::int32_t heads);

}  // namespace kvsim
