#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/cost/op.hpp"
#include "models/llm/layer/layer_kind.hpp"
#include "models/methods/method.hpp"
#include "models/stack/stack.hpp"
#include "models/units/dtype.hpp"

namespace kvsim {

// Prompts whose tokens are split over `Stack::prefill_context` GPUs: each computes two pieces of
// every chunk, an early and a late one, and holds the entries of all. Decoding tokens are
// replicated on all. Sources: vLLM v1/worker/gpu/pcp_manager.py (PCPManager),
// v1/attention/ops/pcp.py,
// model_executor/layers/fused_moe (flatten_tp_across_dp_and_pcp).

/// Throws InputError if `stack` splits prompts but its release does not support this for `llm`, or
/// if `method` is neither the full cache nor a format of rows of fixed size.
void check_split_prompts(const Stack& stack, const Llm& llm);
void check_split_prompts(const Stack& stack, const Llm& llm, const Method& method);

/// Returns a description of the assumptions; nullopt if `stack` does not split prompts.
[[nodiscard]] std::optional<std::string> describe_split_prompts(const Stack& stack);

/// Returns the elements of activations that one token adds to the caches of a layer.
[[nodiscard]] std::int64_t new_elements(const AttentionSpec& attention);

/// Returns the operators before caching: a layer's new entries of `tokens` prompt tokens, in
/// `passes` equal parts, are sent to all ranks. Empty if prompts are not split.
[[nodiscard]] std::vector<Op> gather_new_entries(const Stack& stack, const AttentionSpec& attention,
                                                 double tokens, Dtype dtype,
                                                 std::int32_t passes = 1);

/// Returns one rank's part of a prompt span: every rank has the same number of (query, key) pairs.
[[nodiscard]] NewTokens split_span(NewTokens span, std::int32_t ranks);

/// Returns the tokens of earlier parts and of other ranks whose latents a rank expands for its
/// queries: both of its pieces of `computed` tokens attend to all earlier tokens. `before`: tokens
/// cached before a span of `tokens` tokens.
[[nodiscard]] std::int64_t expanded_before(std::int64_t before, std::int64_t tokens,
                                           std::int64_t computed, std::int32_t ranks);

}  // namespace kvsim
