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

// Attention to entries that are dealt over ranks (AttentionWork::context_ranks): each rank attends
// with the heads of all of them to the entries that it holds. Source: vLLM
// v1/attention/ops/common.py (cp_lse_ag_out_rs), v1/attention/backends/flash_attn.py
// (_forward_with_dcp), model_executor/layers/attention/mla_attention.py.

/// Errors: InputError where `stack` deals entries and its release does not deal those of `llm` in
/// `kv_dtype`, or `method` is neither the full cache nor a format of rows of fixed size: a rank
/// holds entries by their positions.
void check_dealt(const Stack& stack, const Llm& llm, const Method& method, Dtype kv_dtype);

/// What is assumed of it, in words; nullopt: `stack` deals nothing.
[[nodiscard]] std::optional<std::string> describe_dealt(const Stack& stack);

/// Before it: the queries of `rows` tokens in `passes` equal parts, `heads` of this rank each, go
/// to all ranks. None where entries are not dealt.
[[nodiscard]] std::vector<Op> gather_queries(const AttentionWork& work, double rows, double heads,
                                             Dtype dtype, std::int32_t passes = 1);
/// After it: ranks exchange the logarithms of their softmax sums, scale their outputs by their
/// shares, and sum them; each gets the sums of its heads. Attention with keys of heads takes the
/// new tokens' own keys in a separate kernel, whose output is merged; a latent of a decoding token
/// is in the cache.
[[nodiscard]] std::vector<Op> combine_outputs(const AttentionWork& work, double rows, double heads,
                                              Dtype dtype, std::int32_t passes = 1);
/// Latents of `tokens` tokens of a prompt's earlier parts, which all ranks expand for their heads:
/// `bytes` of them all.
[[nodiscard]] std::vector<Op> gather_latents(const AttentionWork& work, double bytes, Dtype dtype,
                                             std::int32_t passes = 1);

}  // namespace kvsim
