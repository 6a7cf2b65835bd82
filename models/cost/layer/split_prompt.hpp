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
// every chunk, an early and a late one, and holds the entries of all. Decoding tokens are the same
// on all. Sources: vLLM v1/worker/gpu/pcp_manager.py (PCPManager), v1/attention/ops/pcp.py,
// model_executor/layers/fused_moe (flatten_tp_across_dp_and_pcp).

/// Errors: InputError where `stack` splits prompts and its release does not split those of `llm`;
/// or `method` is neither the full cache nor a format of rows of fixed size.
void check_split_prompts(const Stack& stack, const Llm& llm);
void check_split_prompts(const Stack& stack, const Llm& llm, const Method& method);

/// What is assumed of it, in words; nullopt: `stack` splits no prompt.
[[nodiscard]] std::optional<std::string> describe_split_prompts(const Stack& stack);

/// Elements of activations that one token adds to the caches of a layer.
[[nodiscard]] std::int64_t new_elements(const AttentionSpec& attention);

/// Before it caches them: a layer's new entries of `tokens` tokens of prompts, in `passes` equal
/// parts, go to all ranks. None where prompts are not split.
[[nodiscard]] std::vector<Op> gather_new_entries(const Stack& stack, const AttentionSpec& attention,
                                                 double tokens, Dtype dtype,
                                                 std::int32_t passes = 1);

/// What a rank computes of a span of a prompt: as many pairs of query and key as each other rank.
[[nodiscard]] NewTokens split_span(NewTokens span, std::int32_t ranks);

/// Tokens of earlier parts and of other ranks whose latents a rank expands for its queries: it
/// attends with both of its pieces of `computed` tokens to all before them. `before`: cached before
/// a span of `tokens` tokens.
[[nodiscard]] std::int64_t expanded_before(std::int64_t before, std::int64_t tokens,
                                           std::int64_t computed, std::int32_t ranks);

}  // namespace kvsim
