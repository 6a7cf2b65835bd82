#pragma once

#include <cstdint>

#include "models/methods/method.hpp"

namespace kvsim {

/// Heads that hold only sinks and recent tokens already between the chunks of a chunked prompt, so
/// that a later chunk attends, in them, to those and to itself (DuoAttention, section on chunked
/// pre-filling; duo_attn/patch/llama.py: the cache of streaming heads is cut after every forward
/// pass, a piece is attended to whole). A prompt's first piece, and so a prompt in one piece, is
/// attended to whole in every head.
struct StreamingHeads {
  double share = 0;          // of the KV heads, mean over layers
  std::int64_t entries = 0;  // that each holds at most between pieces
};

/// None (a share of 0) for methods that compress at the prompt's end or later, and where what is
/// evicted is masked and stays in the cache. Where `method` says what each head holds, the share is
/// that of the `heads` KV heads a layer of a GPU, which are taken for the longest (heads_held).
[[nodiscard]] StreamingHeads streaming_heads(const Method& method, std::int32_t n_layers,
                                             std::int32_t heads);

}  // namespace kvsim
